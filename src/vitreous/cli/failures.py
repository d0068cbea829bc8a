"""Error messages for errors of the system (memory, disk, handles) that were not caught where they happened."""

from __future__ import annotations

import errno

from vitreous.errors import MachineError, UserError
from vitreous.inputs import reason

MAX_SHOWN_CHARACTERS = 120  # of a name
SYMLINK_LOOP = "Symlink loop from "
_MEMORY = (
    "there is not enough memory",
    "use a smaller model, image size or batch, fewer workers, or a machine with more",
)
_HANDLES = "no more files can be opened", "raise the limit (ulimit -n), or use fewer workers"
_THREADS = "no more processes or threads can be started", "raise the limits (ulimit -u and -v), or use fewer workers"
_SPACE = "the disk is full", "free some space and repeat the command"
_BY_ERRNO = {
    errno.ENOMEM: _MEMORY,
    errno.EMFILE: _HANDLES,
    errno.ENFILE: _HANDLES,
    errno.EAGAIN: _THREADS,
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: _SPACE,  # ulimit -f
}
"""Problem and remedy by errno."""
_BY_MESSAGE = {
    "can't allocate memory": _MEMORY,
    "cannot allocate memory": _MEMORY,
    "not enough memory": _MEMORY,
    "bad_alloc": _MEMORY,
    "could not create a primitive": _MEMORY,  # oneDNN, if it gets no memory for generated code
    "failed to map segment": _MEMORY,
    "can't start new thread": _THREADS,
    "too many open files": _HANDLES,
}
"""The same by the messages of libraries without an errno, such as torch."""


def explain_failure(error: Exception) -> MachineError | UserError | None:
    """The error to show for a system error; None for an error that may be a bug."""
    name = getattr(error, "filename", None) if isinstance(error, OSError) else None
    if name is not None:
        name = _shortened(name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name))
    if (refusal := _refusal(error)) is not None:
        what, remedy = refusal
        words = next(iter(reason(error).strip().splitlines()), "") or type(error).__name__
        where = "" if name is None else f"{name}: "
        return MachineError(f"{where}{what} ({_shortened(words.rstrip('.'))}); {remedy}.")
    if name is not None:
        return UserError(f"{name}: cannot be used ({reason(error)}); check the name, its mode and owner.")
    if isinstance(error, RuntimeError) and str(error).startswith(SYMLINK_LOOP):  # Python 3.13 has an OSError for it
        return UserError(
            f"{str(error).removeprefix(SYMLINK_LOOP)}: symbolic links that lead in a circle; mend or remove them."
        )
    return None


def _refusal(error: Exception) -> tuple[str, str] | None:
    """Problem and remedy, if the machine refused something."""
    if isinstance(error, MemoryError):
        return _MEMORY
    if isinstance(error, OSError) and error.errno in _BY_ERRNO:
        return _BY_ERRNO[error.errno]
    if isinstance(error, RuntimeError | ImportError | OSError):
        text = str(error).lower()
        return next((refusal for words, refusal in _BY_MESSAGE.items() if words in text), None)
    return None


def _shortened(text: str) -> str:
    half = MAX_SHOWN_CHARACTERS // 2
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:half]}...{text[-half:]}"
