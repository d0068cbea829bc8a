"""Sentences about words that are no verb, and about options that moved or were renamed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vitreous.errors import UserError

SYNONYMS = {"train": "fit", "finetune": "fit", "fine-tune": "fit", "classify": "predict"}
"""What other programs call a verb."""
MOVED = {
    ("explain", "--steps"): "walkthrough MODEL IMAGE",
    ("explain", "--reconstruct"): "reconstruct RUN IMAGE",
    ("explain", "--weights"): "plot-weights MODEL",
    ("explain", "--score"): "score-explanations MODEL DATA",
}
"""Options that earlier versions had, and the verb that does this now."""
RENAMED = {("import", "--part"): "--entry"}
"""Options that earlier versions called something else, and what they are called now."""


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


def refuse_moved(verb: str, args: Sequence[str]) -> None:
    """Say what an option that this verb no longer has is called now, or which verb does the same."""
    for arg in args:
        name = arg.partition("=")[0]
        if command := MOVED.get((verb, name)):
            raise UserError(f"{verb} {name}: this is a command of its own now: vitreous {command}.")
        if option := RENAMED.get((verb, name)):
            raise UserError(f"{verb} {name}: this option is called {option} now.")
