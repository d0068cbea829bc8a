"""Text of others, such as the name of a class or a file, within Markdown: it is shown, and does nothing."""

from __future__ import annotations

import re
import unicodedata

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of what has no shape of its own: control characters, marks that turn the direction of writing,
halves of characters, ends of lines."""
_JOINERS = "\u200c\u200d"  # they belong to Persian words and to emoji
_MAX_LENGTH = 200


def visible(text: str, allowed: str = "") -> str:
    """The text with what cannot be seen written out, such as `\\n` or `\\u202e`; the characters in `allowed` stay."""
    return "".join(
        repr(letter)[1:-1] if unicodedata.category(letter) in _UNSEEN and letter not in allowed + _JOINERS else letter
        for letter in text
    )


def code(text: str) -> str:
    """Any text as a code span of Markdown, on one line: in there nothing is a tag, a link, a list or a heading.

    The fence is longer than any run of backticks in the text, and blanks keep it off the text's own.
    """
    shown = visible(text)
    if len(shown) > _MAX_LENGTH:
        shown = shown[: _MAX_LENGTH - 1] + "…"
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    blank = " " if longest or not shown or (shown[0] == shown[-1] == " ") else ""
    return f"{fence}{blank}{shown}{blank}{fence}"
