"""What the system refuses while something is written, as a sentence for a person."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from vitreous.errors import MachineError, UserError
from vitreous.inputs import reason

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NOT_A_FOLDER = (errno.ENOTDIR, errno.EEXIST)


def unwritable(path: Path, error: Exception) -> UserError:
    """The error to raise where a file or folder cannot be written."""
    return UserError(f"{path}: cannot be written ({reason(error)}); choose another place.")


@contextmanager
def readable_errors(place: Path) -> Iterator[None]:
    """Within, a full disk becomes a `MachineError` that names `place`, a missing permission a `UserError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _number(error)
        if number in _FULL:
            raise MachineError(
                f"{place}: the disk is full; free some space and repeat the command: what was saved before is intact."
            ) from error
        if number in _FORBIDDEN:
            raise UserError(
                f"{place}: no permission to write here; change its mode or owner, or choose another place."
            ) from error
        if number in _NOT_A_FOLDER:
            raise UserError(f"{place}: a part of this path is a file, not a folder; choose another place.") from error
        raise


def _number(error: OSError | SafetensorError) -> int | None:
    """The system's number of an error; safetensors has it in its message only."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else None
