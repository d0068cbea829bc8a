"""Tensors from checkpoint files, recognised by content and not by name. Nothing here ever runs code from a file.

.safetensors    mapped into memory
.pth .pt .bin   only through `torch.load(weights_only=True)`, which builds tensors and plain containers, nothing else.
                `argparse.Namespace`, in which training files keep their options, is allowed too: it runs no code
.npz            without pickled objects
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vitreous import inputs
from vitreous.arguments import shown
from vitreous.errors import UserError
from vitreous.inputs import format_bytes, open_input
from vitreous.weights.checkpoint import RawCheckpoint

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".npz")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")  # read from a folder even if it holds other checkpoints
SHARD_INDEX = "model.safetensors.index.json"
_ENTRIES = ("teacher", "model_ema", "state_dict_ema", "model", "state_dict", "student")
"""Entries of a training file that may hold a model, the preferred first: averaged weights before raw ones."""
_TEACHER_STUDENT = ("teacher", "student")
"""DINOv2 keeps both in one module, under names with these prefixes; the preferred first."""
_PROJECTIONS = (
    *("patch_embed.proj.weight", "patch_embeddings.projection.weight"),
    *("stem.conv.weight", "conv_stem.weight", "embedder.convolution.weight", "embeddings.convolution.weight"),
)
"""Endings of the name of the first convolution, which every model has."""
_WRAPPERS = ("module.", "_orig_mod.", "timm_model.")
"""What `DistributedDataParallel`, `torch.compile` and the timm wrapper of `transformers` put before every name."""
# An archive may claim MAX_NPZ_BYTES plus its size times NPZ_RATIO: trained weights hardly shrink when compressed.
MAX_NPZ_BYTES, NPZ_RATIO = 2**24, 20
MAX_NAME_LENGTH = 500  # of a tensor
_ARCHIVE_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_raw(
    path: Path, size: tuple[int, int] | None = None, heads: int | None = None, entry: str | None = None
) -> RawCheckpoint:
    """The tensors of a file or folder, and the descriptions beside them.

    size, heads: of the model, if the user gave them. entry: which model of a training file; None for the preferred one.
    """
    if not path.exists():
        raise UserError(f"{path}: there is no such file; check the path.")
    raw = _read_folder(path, entry) if path.is_dir() else _read_file(path, entry)
    raw = _split_teacher_student(replace(raw, tensors=_strip_wrappers(raw.tensors)), entry)
    if entry is not None and raw.entry != entry:
        raise unknown_entry(raw.where, entry, (raw.entry, *raw.other_models) if raw.entry else raw.other_models)
    folder = path if path.is_dir() else path.parent
    config, processor = (read_json(folder / name) for name in ("config.json", "preprocessor_config.json"))
    return replace(raw, config=config, processor=processor, image_size=size, heads=heads)


def unknown_entry(where: object, entry: str, has: Sequence[str] = ()) -> UserError:
    if not has:
        return UserError(f"{where}: holds one model and no entries to choose from; leave entry={entry!r} out.")
    return UserError(f"{where}: has no entry {entry!r} that holds a model; choose one of {', '.join(has)}.")


def _read_folder(folder: Path, entry: str | None) -> RawCheckpoint:
    """The one checkpoint in a folder."""
    names = sorted(file.name for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    usual = [name for name in WEIGHT_FILES if name in names]
    if (folder / SHARD_INDEX).exists() and WEIGHT_FILES[0] not in names:
        return _read_shards(folder)
    if usual or len(names) == 1:
        return _read_file(folder / (usual or names)[0], entry)
    if names:
        raise UserError(f"{folder}: holds {', '.join(names)}; give the path of the one that is meant.")
    has = ", ".join(sorted(entry.name for entry in folder.iterdir())[:5]) or "nothing"
    raise UserError(f"{folder}: no weights in it (it holds {has}); give a bundle, a run or a checkpoint.")


def _read_shards(folder: Path) -> RawCheckpoint:
    listed = (read_json(folder / SHARD_INDEX) or {}).get("weight_map")
    if not isinstance(listed, dict):
        raise UserError(f"{folder / SHARD_INDEX}: has no weight_map; get the folder again.")
    tensors: dict[str, Tensor] = {}
    for name in sorted({Path(str(file)).name for file in listed.values()}):
        tensors |= read_safetensors(folder / name)
    return RawCheckpoint(str(folder / SHARD_INDEX), "safetensors", tensors)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, None if there is no such file."""
    if not os.path.lexists(path):
        return None
    found = inputs.read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path}: is not a JSON object; get the file again.")
    return found


def _read_file(path: Path, entry: str | None) -> RawCheckpoint:
    with open_input(path) as file:
        start = file.read(64)
    if not start:
        raise UserError(f"{path}: the file is empty; get it again.")
    if start.startswith(b"version https://git-lfs"):
        raise UserError(f"{path}: a pointer of Git LFS, not the file itself; get it with git lfs pull.")
    if start.startswith(b"PK"):
        return _read_zip(path, entry)
    if start[:1] == b"\x80":  # an older torch file is a pickle
        return _select_model(path, _load(path, mapped=False), entry)
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        return RawCheckpoint(str(path), "safetensors", read_safetensors(path))
    raise UserError(
        f"{path}: not a checkpoint (neither .safetensors, nor PyTorch's .pth, nor .npz); give one, or a bundle."
    )


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file by name, mapped into memory."""
    open_input(path).close()
    try:
        return _check_tensors(path, load_file(path))
    except SafetensorError as error:
        raise UserError(
            f"{path}: not a .safetensors file, or a damaged one ({_reason(error)}); restore it from a copy."
        ) from None
    except (OSError, KeyError, RuntimeError) as error:  # a number type that torch does not have is a KeyError
        raise UserError(f"{path}: cannot be read ({_reason(error)}); get it again.") from None


def _read_zip(path: Path, entry: str | None) -> RawCheckpoint:
    """An .npz or a torch file: both are zip archives. Neither may unpack to much more than its size."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except _ARCHIVE_ERRORS as error:
        raise UserError(f"{path}: damaged or cut short ({_reason(error)}); get it again.") from None
    names, claimed = [member.filename for member in members], sum(member.file_size for member in members)
    of_torch = any(name.endswith("/data.pkl") or name == "data.pkl" for name in names)
    size = path.stat().st_size
    if claimed > (size if of_torch else MAX_NPZ_BYTES + NPZ_RATIO * size):
        raise UserError(
            f"{path}: {format_bytes(size)} that claim to hold {format_bytes(claimed)}, as no weights do; get it again."
        )
    if of_torch:
        return _select_model(path, _load(path, mapped=True), entry)
    if names and all(name.endswith(".npy") for name in names):
        return RawCheckpoint(str(path), "npz", _check_tensors(path, _read_npz(path)))
    raise UserError(
        f"{path}: a zip archive that is no checkpoint (it holds {_one_line(', '.join(names[:3]))}); give another file."
    )


def _read_npz(path: Path) -> dict[str, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except _ARCHIVE_ERRORS as error:
        raise UserError(f"{path}: damaged, or not plain numbers ({_reason(error)}); get it again.") from None
    for name, array in arrays.items():
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__  # bytes of what is no array
        if not isinstance(kind, np.dtype) or kind.kind not in "fiuc" or kind.itemsize > 8:
            raise UserError(
                f"{path}: {_one_line(name)} holds {kind}, not numbers that PyTorch knows; give another file."
            )
    native = {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}
    return {name: torch.from_numpy(array) for name, array in native.items()}


def _check_tensors(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, if all have printable names, are dense, and are stored in the file completely.

    A torch file may describe sparse tensors, or repeat a few stored numbers over any shape.
    """
    if odd := [name for name in tensors if len(name) > MAX_NAME_LENGTH or not name.isprintable()]:
        raise UserError(f"{path}: {shown(odd[0])} is no name of a tensor; get the file again.")
    dense = (torch.strided, torch.device("cpu"))
    if strange := [n for n, tensor in tensors.items() if (tensor.layout, tensor.device) != dense or tensor.is_nested]:
        raise UserError(f"{path}: {strange[0]} is no plain tensor; have whoever made it save dense tensors.")
    claimed, size = sum(tensor.nbytes for tensor in tensors.values()), path.stat().st_size
    if claimed > MAX_NPZ_BYTES + NPZ_RATIO * size or (path.suffix != ".npz" and claimed > size):
        raise UserError(
            f"{path}: {format_bytes(size)} that claim to hold {format_bytes(claimed)} of tensors; get it again."
        )
    return tensors


def _reason(error: Exception) -> str:
    return _one_line(str(error)).rstrip(".") or type(error).__name__


def _one_line(text: str) -> str:
    """Text of a file or a library on one line of at most 200 characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:1000]).strip()[:200]


def _load(path: Path, *, mapped: bool) -> Any:
    """The content of a torch file; none of its code is run."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles in newer protocols, which are refused anyway
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        raise UserError(
            f"{path}: holds more than tensors ({found[1] if found else 'objects of Python'}), which could run code "
            "and was not opened; have whoever made it save the state_dict alone, best as .safetensors."
        ) from None
    except Exception as error:  # of a damaged file torch raises anything from EOFError to KeyError
        raise UserError(f"{path}: damaged, or no checkpoint of PyTorch ({_reason(error)}); get it again.") from None


def _select_model(path: Path, found: Any, entry: str | None) -> RawCheckpoint:
    """The tensors of one model; the tensors of all other entries are counted."""
    if not isinstance(found, dict):
        raise UserError(f"{path}: holds {type(found).__name__}, not tensors by name; give a state_dict.")
    models = [name for name, value in found.items() if isinstance(name, str) and _holds_tensors(value, _PROJECTIONS)]
    known = (name for name in _ENTRIES if _holds_tensors(found.get(name)))
    entry = entry if entry in models else next(known, None)
    if entry is None and not _holds_tensors(found) and models:
        if len(models) > 1:
            raise UserError(
                f"{path}: holds the models {' and '.join(models)}, and which is meant is not known; say it: "
                f"vitreous import SOURCE BUNDLE --entry {models[0]}."
            )
        entry = models[0]
    state = found if entry is None else found[entry]
    tensors = {name: value for name, value in state.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if not tensors:
        names = _one_line(", ".join([name for name in found if isinstance(name, str)][:5])) or "nothing"
        raise UserError(f"{path}: holds no tensors by name (it has {names}); give a state_dict.")
    others = {name: value for name, value in found.items() if name != entry} if entry else {}
    others |= {name: value for name, value in state.items() if name not in tensors}
    ignored = {name if isinstance(name, str) else shown(name): _count(value) for name, value in others.items()}
    other_models = tuple(name for name in models if name != entry)
    tensors = _check_tensors(path, tensors)
    return RawCheckpoint(str(path), "torch", tensors, entry, ignored, other_models)


def _strip_wrappers(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without the prefix that a wrapper put before every name."""
    while tensors and (wrapper := next((w for w in _WRAPPERS if all(name.startswith(w) for name in tensors)), None)):
        tensors = {name.removeprefix(wrapper): value for name, value in tensors.items()}
    return tensors


def _split_teacher_student(raw: RawCheckpoint, entry: str | None) -> RawCheckpoint:
    """The teacher or the student, if their tensors lie side by side; the tensors of the other are counted."""
    words = Counter(name.partition(".")[0] for name in raw.tensors)
    pair = [word for word in _TEACHER_STUDENT if word in words]
    if not pair or (len(pair) < 2 and list(words) != pair):  # a module of a model may be called so
        return raw
    taken = entry if entry in pair else pair[0]
    start = f"{taken}."
    own = {name.removeprefix(start): tensor for name, tensor in raw.tensors.items() if name.startswith(start)}
    ignored = {word: count for word, count in words.items() if word != taken} | raw.ignored
    other_models = tuple(word for word in pair if word != taken) + raw.other_models
    return replace(raw, tensors=_strip_wrappers(own), entry=taken, ignored=ignored, other_models=other_models)


def _holds_tensors(value: Any, endings: tuple[str, ...] = ("",)) -> bool:
    """Whether this is a dict of tensors in which a name has one of these endings."""
    tensors = isinstance(value, dict) and any(isinstance(one, Tensor) for one in value.values())
    return tensors and any(str(name).endswith(endings) for name in value)


def _count(value: Any) -> int:
    """The number of tensors at any depth; each container is visited once, for it may contain itself."""
    seen, waiting, count = set(), [value], 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        count += isinstance(one, Tensor)
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list | tuple) else ()
    return count
