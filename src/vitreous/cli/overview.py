"""`vitreous --help`, and the error for an unknown verb. Without tyro, whose import is slow."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from itertools import chain

from vitreous.errors import UserError
from vitreous.storage.cache import HELP

OPTIONS = {"-h, --help": "Show this help message and exit.", "-V, --version": "Show the version and exit."}
SYNONYMS = {"train": "fit", "finetune": "fit", "fine-tune": "fit", "classify": "predict"}
"""Names of verbs in other programs."""
START = {
    "vitreous fit photos/ --budget 5m": "train: one folder of images per class",
    "vitreous predict runs/photos cat.jpg": "label images",
    "vitreous explain runs/photos cat.jpg": "see what it looked at",
}
"""The commands to begin with."""
TITLE = "A Vision Transformer you can see through: train, use and explain image classifiers."


def overview(groups: Mapping[str, Mapping[str, str]], word: str = "") -> str:
    """The text of `vitreous --help`, in tyro's layout: a box for each group. word: the first word of all verbs in it,
    for `vitreous data --help`."""
    command = f"vitreous {word}".rstrip()
    width = max(40, shutil.get_terminal_size().columns)
    boxes = {**groups, "options": {name: line for name, line in OPTIONS.items() if not (word and "version" in name)}}
    boxes = boxes if word else {"start with": START, **boxes}
    text = [f"usage: {command} COMMAND ...", ""]
    text += [] if word else [*textwrap.wrap(TITLE, width), ""]
    for title, rows in boxes.items():
        column = max(map(len, rows if title == "start with" else chain(*groups.values(), OPTIONS))) + 2
        lines = []
        for name, summary in rows.items():
            wrapped = textwrap.wrap(summary, max(10, width - 4 - column), break_on_hyphens=False)
            lines += [f"{'' if number else name:{column}}{line}" for number, line in enumerate(wrapped)]
        if (sys.stdout.encoding or "").lower() == "utf-8":
            text.append(f"╭─ {title} {'─' * (width - 5 - len(title))}╮")
            text += [*(f"│ {line:{width - 4}} │" for line in lines), f"╰{'─' * (width - 2)}╯"]
        else:
            text += [f" {title}", f" {'-' * (width - 2)}", *(f"  {line}" for line in lines), ""]
    words = "" if word else " vitreous glossary explains the words."
    text += ["", *textwrap.wrap(f"{command} COMMAND --help shows the options of a command.{words}", width)]
    return "\n".join(text if word else [*text, *textwrap.wrap(HELP, width, break_on_hyphens=False)])


def unknown_verb(word: str, verbs: Iterable[str], family: str = "") -> UserError:
    """The error for an unknown verb, with a suggestion. family: the first word of all these verbs."""
    from difflib import get_close_matches

    known = [verb.removeprefix(f"{family} ") for verb in verbs]
    if word in SYNONYMS and not family:
        near = [SYNONYMS[word]]
    else:
        near = [verb for verb in known if word and verb.startswith(word)] or get_close_matches(word, known, n=1)
    command, shown = f"vitreous {family}".rstrip(), word if 0 < len(word) <= 60 else f"{word[:60]!r}"
    meant = f"did you mean `{command} {near[0]}`?" if near else f"`{command} --help` lists the commands."
    kind = "option" if word.startswith("-") else "command"
    return UserError(f"{f'{family} {shown}'.lstrip()}: there is no such {kind}; {meant}")
