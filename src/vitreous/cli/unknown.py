"""Sentences about words that are no verb."""

from __future__ import annotations

from collections.abc import Iterable

from vitreous.errors import UserError

SYNONYMS = {"train": "fit", "finetune": "fit", "fine-tune": "fit", "classify": "predict"}
"""What other programs call a verb."""


def unknown_verb(word: str, verbs: Iterable[str], family: str = "") -> UserError:
    """The sentence about a word that is no verb, with what may have been meant.

    family: the word before it, which all these verbs begin with.
    """
    from difflib import get_close_matches

    known = [verb.removeprefix(f"{family} ") for verb in verbs]
    near = (
        [SYNONYMS[word]] if word in SYNONYMS and not family else [one for one in known if word and one.startswith(word)]
    )
    near = near or get_close_matches(word, known, n=1)
    command, shown = f"vitreous {family}".rstrip(), word if 0 < len(word) <= 60 else f"{word[:60]!r}"
    meant = f"did you mean `{command} {near[0]}`?" if near else f"`{command} --help` lists the commands."
    kind = "option" if word.startswith("-") else "command"
    return UserError(f"{f'{family} {shown}'.lstrip()}: there is no such {kind}; {meant}")
