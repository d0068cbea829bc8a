"""Sentences about what the machine refused, where nobody nearer to it could say more."""

from __future__ import annotations

import errno

from vitreous.errors import MachineError, UserError
from vitreous.inputs import reason

LONGEST = 120
"""Letters of a name that are shown."""
LOOP = "Symlink loop from "
_SHORT = {
    errno.ENOMEM: "memory",
    errno.EMFILE: "file handles",
    errno.ENFILE: "file handles",
    errno.EAGAIN: "processes or threads",
    errno.ENOSPC: "space on the disk",
    errno.EDQUOT: "space on the disk",
}
"""What there is too little of, by the system's number of the error."""
_WORDS = {
    "can't allocate memory": "memory",
    "not enough memory": "memory",
    "bad_alloc": "memory",
    "failed to map segment": "memory",
    "cannot allocate memory": "memory",
    "can't start new thread": "processes or threads",
    "too many open files": "file handles",
}
"""The same in the words of libraries that have no number, such as torch."""
_REMEDIES = {
    "memory": "use a smaller model, image size or batch, fewer workers, or a machine with more",
    "file handles": "raise the limit (ulimit -n), or use fewer workers",
    "processes or threads": "raise the limit (ulimit -u), or use fewer workers",
    "space on the disk": "free some and repeat the command",
}


def explain_failure(error: BaseException) -> MachineError | UserError | None:
    """A sentence for a person about an error that is nobody's mistake in the program; None where it may be one."""
    if (lack := _lacking(error)) is not None:
        where = f"{_named(error)}: " if isinstance(error, OSError) and error.filename is not None else ""
        return MachineError(f"{where}there is not enough {lack} ({_words(error)}); {_REMEDIES[lack]}.")
    if isinstance(error, OSError) and error.filename is not None:
        return UserError(f"{_named(error)}: cannot be used ({reason(error)}); check the name, its mode and owner.")
    if isinstance(error, RuntimeError) and str(error).startswith(LOOP):  # Python 3.13 has an OSError for it
        return UserError(f"{str(error).removeprefix(LOOP)}: symbolic links that lead in a circle; mend or remove them.")
    return None


def _lacking(error: BaseException) -> str | None:
    """What there was too little of, if that is what the error says."""
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, OSError) and error.errno in _SHORT:
        return _SHORT[error.errno]
    if isinstance(error, RuntimeError | ImportError | OSError):
        said = str(error).lower()
        return next((lack for words, lack in _WORDS.items() if words in said), None)
    return None


def _words(error: BaseException) -> str:
    """What the error says of itself, in one short line."""
    said = reason(error) if isinstance(error, OSError) else str(error)
    line = next(iter(said.strip().splitlines()), "") or type(error).__name__
    return _shortened(line.rstrip("."))


def _named(error: OSError) -> str:
    name = error.filename
    return _shortened(name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name))


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}...{text[-LONGEST // 2 :]}"
