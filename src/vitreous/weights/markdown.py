"""Escape untrusted text, such as the name of a class or a file, for Markdown."""

from __future__ import annotations

import re
import unicodedata

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of invisible characters: controls, direction marks, surrogates, line separators."""
_JOINERS = "\u200c\u200d"  # they belong to Persian words and to emoji
_MAX_LENGTH = 200


def visible(text: str, allowed: str = "") -> str:
    """The text with invisible characters as escapes, such as `\\n` or `\\u202e`; those in `allowed` stay."""
    return "".join(
        repr(letter)[1:-1] if unicodedata.category(letter) in _UNSEEN and letter not in allowed + _JOINERS else letter
        for letter in text
    )


def code(text: str) -> str:
    """Any text as a Markdown code span on one line, fenced by more backticks than the text has in a row."""
    shown = visible(text)
    if len(shown) > _MAX_LENGTH:
        shown = shown[: _MAX_LENGTH - 1] + "…"
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    blank = " " if longest or not shown or (shown[0] == shown[-1] == " ") else ""
    return f"{fence}{blank}{shown}{blank}{fence}"
