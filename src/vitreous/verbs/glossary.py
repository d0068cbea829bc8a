"""`vitreous glossary`: the words of messages and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from vitreous.cli.terminal import print_wide, printable, table
from vitreous.cli.verb import Verb
from vitreous.errors import UserError
from vitreous.glossary import GLOSSARY


@dataclass(frozen=True)
class Glossary(Verb[dict[str, str]]):
    """Explain the words that messages and pages use, such as bundle, ECE or frozen features."""

    words: Sequence[str] = ()
    """WORD ...: Which words, such as ECE. Default: all."""

    def run(self) -> dict[str, str]:
        if not self.words:
            return GLOSSARY
        together = " ".join(self.words)  # frozen features
        is_one = together.lower() in map(str.lower, GLOSSARY)
        return {name: GLOSSARY[name] for name in _entries(*([together] if is_one else self.words))}

    def to_json(self, result: dict[str, str]) -> Any:
        return result

    def show(self, result: dict[str, str]) -> None:
        print_wide(table(("", ""), result.items()))


def _entries(*texts: str) -> list[str]:
    """The names that these texts mean, each in the singular or the plural; refuses a text that means none."""
    names, found = {name.lower(): name for name in GLOSSARY}, []
    for text in texts:
        same = [names[one] for one in (text.lower(), text.lower().removesuffix("s")) if one in names]
        if not same:
            near = get_close_matches(text.lower(), names, n=1)
            meant = f"did you mean {names[near[0]]!r}?" if near else "`vitreous glossary` lists the words."
            raise UserError(f"{printable(text)[:60]}: not in the glossary; {meant}")
        found.append(same[0])
    return found
