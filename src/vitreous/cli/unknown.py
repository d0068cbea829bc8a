"""Sentences about words that are no verb."""

from __future__ import annotations

from collections.abc import Iterable

from vitreous.errors import UserError

SYNONYMS = {"train": "fit", "finetune": "fit", "fine-tune": "fit", "classify": "predict"}
"""What other programs call a verb."""


def unknown_verb(word: str, verbs: Iterable[str]) -> UserError:
    """The sentence about a word that is no verb, with what may have been meant."""
    from difflib import get_close_matches

    verbs = list(verbs)
    near = [SYNONYMS[word]] if word in SYNONYMS else [verb for verb in verbs if verb.startswith(word)]
    near = near or get_close_matches(word, verbs, n=1)
    meant = f"did you mean `vitreous {near[0]}`?" if near else "`vitreous --help` lists the commands."
    return UserError(f"{word}: there is no such {'option' if word.startswith('-') else 'command'}; {meant}")


def unknown_second_word(first: str, word: str, verbs: Iterable[str]) -> UserError:
    """The sentence about a word that makes no verb with the one before it."""
    from difflib import get_close_matches

    seconds = [verb.removeprefix(f"{first} ") for verb in verbs]
    near = [second for second in seconds if word and second.startswith(word)]
    near = near or get_close_matches(word, seconds, n=1)
    meant = f"did you mean `vitreous {first} {near[0]}`?" if near else f"`vitreous {first} --help` lists the commands."
    shown = word if 0 < len(word) <= 60 else f"{word[:60]!r}"
    return UserError(f"{first} {shown}: there is no such {'option' if word.startswith('-') else 'command'}; {meant}")
