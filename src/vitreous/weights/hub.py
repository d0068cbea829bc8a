"""Weights by their name on the Hugging Face hub: `hf:org/name`, or `hf:org/name@revision`."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vitreous.errors import UserError

PREFIX = "hf:"
_DESCRIPTIONS = ["config.json", "preprocessor_config.json", "manifest.json", "README.md"]
_WEIGHTS = ["model.safetensors", "model.safetensors.index.json", "model-*.safetensors"]

_NOT_CACHED = (
    "not on this machine yet, and the hub cannot be asked (HF_HUB_OFFLINE is set, there is no network, or it answers "
    "with an error); get it once while online, or give a folder."
)
MAX_EXTRA_BYTES = 10_000  # more than announced; then a download is aborted


def fetch(name: str) -> Path:
    """The folder of the hub's files in the local cache; missing files are downloaded unless HF_HUB_OFFLINE=1."""
    try:
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub import errors as hub
    except ImportError:
        raise UserError(
            f"{name}: names on the hub need the package huggingface_hub; install it with "
            "pip install 'vitreous[hub]', or give a folder."
        ) from None
    repository, _, revision = name.removeprefix(PREFIX).partition("@")
    try:
        for patterns in (_WEIGHTS, ["pytorch_model.bin"]):
            folder = Path(
                snapshot_download(
                    repository,
                    revision=revision or None,
                    allow_patterns=[*_DESCRIPTIONS, *patterns],
                    tqdm_class=_limited_progress_bar(),
                )
            )
            if any(fnmatch(path.name, pattern) for path in folder.iterdir() for pattern in patterns):
                return folder
    except Exception as error:  # a server that answers nonsense makes its package raise anything, KeyError too
        text = " ".join(str(error).split())[:200] or type(error).__name__
        reasons: dict[type[Exception], str] = {  # the first that fits
            hub.HFValidationError: "not a name on the hub; write hf:organisation/model.",
            hub.GatedRepoError: "its owner asks for consent first; give it on the hub, then log in there.",
            hub.RepositoryNotFoundError: "the hub has no such model, or it is private; check the name.",
            hub.RevisionNotFoundError: f"the model has no revision {revision!r}; check it.",
            hub.LocalEntryNotFoundError: _NOT_CACHED,
            hub.OfflineModeIsEnabled: _NOT_CACHED,
            Exception: f"could not be fetched ({text}); try again, or give a folder.",
        }
        raise UserError(f"{name}: {next(reasons[kind] for kind in reasons if isinstance(error, kind))}") from None
    if constants.HF_HUB_OFFLINE:  # then a snapshot is whatever happens to be here
        raise UserError(f"{name}: {_NOT_CACHED}")
    raise UserError(
        f"{name}: neither model.safetensors nor pytorch_model.bin was found; give another model, or try again if the "
        "network was away."
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
