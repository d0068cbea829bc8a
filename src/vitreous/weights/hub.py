"""Weights by their name on the Hugging Face hub: `hf:org/name`, or `hf:org/name@revision`."""

from __future__ import annotations

import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vitreous.errors import UserError
from vitreous.inputs import read_json
from vitreous.storage.http import HttpError, RetryPolicy, get
from vitreous.storage.manifest import sha256_file
from vitreous.weights.published import HUB

_DESCRIPTIONS = ["config.json", "preprocessor_config.json", "manifest.json", "README.md"]
_WEIGHTS = ["model.safetensors", "model.safetensors.index.json", "model-*.safetensors"]

_NOT_CACHED = (
    "not on this machine yet, and the hub cannot be asked (VITREOUS_OFFLINE or HF_HUB_OFFLINE is set, there is no "
    "network, or it answers with an error); get it once while online, or give a folder."
)
MAX_EXTRA_BYTES = 10_000  # more than announced; then a download is aborted
REACH_SECONDS = 5.0  # in which some server must answer
SHA256_LENGTH = 64  # letters; the name of a cached file is its ETag, and of large files this is their SHA-256


class HubUnreachableError(UserError):
    """The weights are not in the cache, and the hub cannot be asked."""


def is_offline() -> bool:
    """Whether nothing may be downloaded."""
    from huggingface_hub import constants

    asked = os.environ.get("VITREOUS_OFFLINE", "").lower() not in ("", "0", "false")
    return asked or bool(constants.HF_HUB_OFFLINE)


def is_cached(name: str) -> bool:
    """Whether weights are on this machine already."""
    repository, revision = _parts(name)
    return _cached(repository, revision) is not None


def fetch(name: str) -> Path:
    """The folder of the hub's files in the local cache; the hub is asked only for what is not there yet.

    An interrupted download is resumed. Large files are compared with the SHA-256 that the hub gave for them, each time.
    """
    repository, revision = _parts(name)
    folder = _cached(repository, revision)
    if folder is None:
        if is_offline():
            raise HubUnreachableError(f"{name}: {_NOT_CACHED}")
        folder = _download(name, repository, revision)
    _check_digests(folder, name)
    return folder


def _parts(name: str) -> tuple[str, str | None]:
    repository, _, revision = name.removeprefix(HUB).partition("@")
    return repository, revision or None


def _cached(repository: str, revision: str | None) -> Path | None:
    """The folder in the cache, if it has all files of the weights."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError:
        raise UserError(f"{HUB}{repository}: not a name on the hub; write hf:organisation/model.") from None
    index, needed = folder / "model.safetensors.index.json", {"model.safetensors"}
    if index.exists():
        listed = read_json(index)
        files = listed.get("weight_map") if isinstance(listed, dict) else None
        if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
            raise UserError(f"{index}: lists no files of weights; delete it, and the weights are fetched again.")
        needed = set(files.values())
    whole = all((folder / file).exists() for file in needed) or (folder / "pytorch_model.bin").exists()
    return folder if whole else None


def _download(name: str, repository: str, revision: str | None) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub import errors as hub

    _check_reachable(name, constants.ENDPOINT)
    try:
        for patterns in (_WEIGHTS, ["pytorch_model.bin"]):
            wanted, bar = [*_DESCRIPTIONS, *patterns], _limited_progress_bar()
            folder = Path(snapshot_download(repository, revision=revision, allow_patterns=wanted, tqdm_class=bar))
            if any(fnmatch(path.name, pattern) for path in folder.iterdir() for pattern in patterns):
                return folder
    except (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled):
        raise HubUnreachableError(f"{name}: {_NOT_CACHED}") from None
    except Exception as error:  # a server that answers nonsense makes its package raise anything, KeyError too
        text = " ".join(str(error).split())[:200] or type(error).__name__
        reasons: dict[type[Exception], str] = {  # the first that fits
            hub.GatedRepoError: "its owner asks for consent first; give it on the hub, then log in there.",
            hub.RepositoryNotFoundError: "the hub has no such model, or it is private; check the name.",
            hub.RevisionNotFoundError: f"the model has no revision {revision!r}; check it.",
            Exception: f"could not be fetched ({text}); try again, or give a folder.",
        }
        raise UserError(f"{name}: {next(reasons[kind] for kind in reasons if isinstance(error, kind))}") from None
    raise UserError(
        f"{name}: neither model.safetensors nor pytorch_model.bin was found; give another model, or try again if the "
        "network was away."
    )


def _check_reachable(name: str, endpoint: str) -> None:
    """Say within seconds that there is no network: huggingface_hub tries again for half a minute."""
    try:
        with get(endpoint, {}, RetryPolicy(seconds=REACH_SECONDS, tries=1)):
            pass
    except HttpError as error:
        if not error.status:  # no server answered; one that answers with an error is asked for the model
            raise HubUnreachableError(f"{name}: {_NOT_CACHED}") from None


def _check_digests(folder: Path, name: str) -> None:
    """Refuse, and delete from the cache, a file whose content is not what the hub's SHA-256 says."""
    for path in folder.iterdir():
        blob = path.resolve()
        if path.is_symlink() and len(blob.name) == SHA256_LENGTH and sha256_file(blob) != blob.name:
            path.unlink()
            blob.unlink()
            raise UserError(
                f"{name}: {path.name} is not what the hub's SHA-256 says, so it was altered or damaged on the way; it "
                "was deleted from the cache: try again."
            )


def _limited_progress_bar() -> type[Any]:
    """The hub's progress bar, which aborts a download of more bytes than were announced."""
    from huggingface_hub.utils.tqdm import tqdm

    class LimitedProgressBar(tqdm):
        received = 0

        def __init__(self, *args: Any, **options: Any) -> None:
            self.of_bytes = options.get("unit") == "B"  # files are counted by such a bar too
            super().__init__(*args, **options)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            self.received += int(n or 0)
            if self.of_bytes and self.total and self.received > self.total + MAX_EXTRA_BYTES:
                raise OSError(f"it sends more than the {self.total:,} bytes that it announced")
            return super().update(n)

    return LimitedProgressBar
