"""SHA-256 of files and of JSON, as 64 hexadecimal digits."""

from __future__ import annotations

import json
import re
from hashlib import file_digest, sha256
from pathlib import Path


def sha256_file(path: Path) -> str:
    """Of the bytes in a file."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def sha256_json(value: object) -> str:
    """Of anything that JSON can say; other objects count as their text."""
    return sha256(json.dumps(value, default=str).encode()).hexdigest()


def is_sha256(value: object) -> bool:
    """Whether this is such a digest and nothing else: files are called after it."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None
