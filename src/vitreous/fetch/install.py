"""A dataset of the table, from its owners to ROOT/NAME: downloaded, checked, unpacked, counted, then renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import md5, sha256
from importlib.util import find_spec
from pathlib import Path

from vitreous.callbacks import NamedProgress
from vitreous.data.datasets.dataset import Dataset, File
from vitreous.data.datasets.store import CARD, FILES, Card, broken_links, read_card, read_dataset
from vitreous.data.folder import FolderSource
from vitreous.data.source import Data, Split
from vitreous.errors import UserError
from vitreous.fetch.archive import MAX_EXPANSION, SPARE_BYTES, unpack_archive, unpack_gzip
from vitreous.fetch.download import download, downloaded_from, origin_of, part_of
from vitreous.inputs import format_bytes, open_input
from vitreous.storage.files import fsync_file, remove_folder, write_file
from vitreous.storage.http import RetryPolicy
from vitreous.storage.overwrite import GENERATOR, readable_errors

CHUNK_BYTES = 2**20
DOWNLOADS = "downloads"
EXTRAS = {"h5py": "'vitreous[hdf5]'", "scipy": "'vitreous[mat]'"}  # what to install for a package that a dataset needs


@dataclass(frozen=True)
class Fetched:
    """A file that is here and is what was published."""

    file: File
    path: Path
    url: str | None  # none for a file that somebody put there
    sha256: str | None  # none for a folder


def downloads_of(dataset: Dataset, root: Path) -> Path:
    """Where the files of a dataset are downloaded to, or put by hand."""
    return root / DOWNLOADS / dataset.folder


def install(
    dataset: Dataset, root: Path, *, progress: NamedProgress | None = None, retry: RetryPolicy | None = None
) -> Path:
    """Bring a dataset to `root` and return its folder; what is there already stays as it is."""
    final, store = root / dataset.name, root / dataset.folder
    check_place(final)
    check_place(store)
    with readable_errors(root):
        if read_card(store) is None:
            check_needs(dataset)
            check_by_hand(dataset, root)
            check_space(dataset, root)
            fetched = [_fetch_file(file, downloads_of(dataset, root), progress, retry) for file in dataset.files]
            _build_folder(dataset, store, fetched, progress)
            for one in fetched:  # what a person put there stays
                if one.url is not None:
                    _remove(one.path)
            with suppress(OSError):
                downloads_of(dataset, root).rmdir()
        check_links(dataset, store)
        if dataset.store and read_card(final) is None:
            check_counts(dataset, store)
            temporary = final.with_name(f".{final.name}.new")
            remove_folder(temporary)
            temporary.mkdir(parents=True)
            write_file(temporary / CARD, Card(dataset.name, f"../{dataset.store}").to_json(generator=GENERATOR))
            _rename(temporary, final)
    return final


def check_place(folder: Path) -> None:
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: cannot be used ({error}); choose another folder for data.") from None
    if taken and read_card(folder) is None:
        raise UserError(f"{folder}: there is something of this name that `data get` did not make; move it away first.")


def check_links(dataset: Dataset, store: Path) -> None:
    if broken := broken_links(dataset, store):
        target = broken[0].parent / broken[0].readlink()
        raise UserError(
            f"{broken[0]}: links to {os.path.normpath(target)}, which is not there any more; put it back, or remove "
            f"{store} and get the dataset again."
        )


def check_needs(dataset: Dataset) -> None:
    if missing := [package for package in dataset.needs if find_spec(package) is None]:
        raise UserError(
            f"{dataset.name}: its files are read with the package {missing[0]}; install it with "
            f"pip install {EXTRAS.get(missing[0], missing[0])}."
        )


def check_by_hand(dataset: Dataset, root: Path) -> None:
    place = downloads_of(dataset, root)
    missing = [file for file in dataset.by_hand if not (place / file.name).exists()]
    if missing:
        files = "one file" if len(missing) == 1 else f"{len(missing)} files"
        how = "; ".join(f"{file.name}{'/' * (file.kind == 'folder')} ({file.by_hand})" for file in missing)
        raise UserError(
            f"{dataset.name}: a person has to get {files} of it. Put {how} into {place}, then repeat the command."
        )


def check_space(dataset: Dataset, root: Path) -> None:
    place, needed = downloads_of(dataset, root), dataset.prepared
    for file in dataset.files:
        size = file.size or 0
        if not (place / file.name).exists():
            with suppress(OSError):
                size -= part_of(place / file.name).stat().st_size
            needed += max(0, size)
        if file.kind != "folder":
            needed += file.unpacked or file.size or 0
    there = next(folder for folder in (root.absolute(), *root.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise UserError(
            f"{dataset.name}: needs about {format_bytes(needed)} on the disk of {root}, and {format_bytes(free)} are "
            "free; free some, or choose another folder for data."
        )


def _fetch_file(file: File, place: Path, progress: NamedProgress | None, retry: RetryPolicy | None) -> Fetched:
    """The file at its place in the downloads, checked; of a wrong one that we brought, nothing is kept."""
    path, url = place / file.name, None
    place.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        shown = None if progress is None else (lambda done, total: progress(file.name, done, total))
        url = download(file.urls, path, size=file.size, progress=shown, retry=retry)
    else:
        url = downloaded_from(path)
    if file.kind == "folder":
        return Fetched(file, path, None, None)
    try:
        return Fetched(file, path, url, check_file(file, path, progress))
    except UserError:
        if url is not None:
            _remove(path)
        raise


def check_file(file: File, path: Path, progress: NamedProgress | None = None) -> str:
    """The SHA-256 of a file that has the published size and checksum; any other is refused."""
    with open_input(path) as content:
        size = os.fstat(content.fileno()).st_size
        if file.size is not None and size != file.size:
            raise UserError(f"{path}: has {size:,} bytes, and {file.size:,} were published; get it again.")
        digests = {"SHA-256": sha256(), "MD5": md5(usedforsecurity=False)}
        done = 0
        while piece := content.read(CHUNK_BYTES):
            for digest in digests.values():
                digest.update(piece)
            done += len(piece)
            if progress is not None:
                progress(f"checking {file.name}", done, size)
    for kind, published in (("SHA-256", file.sha256), ("MD5", file.md5)):
        if published is not None and digests[kind].hexdigest() != published:
            raise UserError(
                f"{path}: its {kind} is {digests[kind].hexdigest()}, and {published} was published, so it is not used; "
                "get it again."
            )
    return digests["SHA-256"].hexdigest()


def _build_folder(dataset: Dataset, store: Path, fetched: list[Fetched], progress: NamedProgress | None) -> None:
    """Make the folder of a dataset's files beside its place, count what is in it, and rename it."""
    temporary = store.with_name(f".{store.name}.new")
    try:
        remove_folder(temporary)  # left by a process that was killed
        temporary.mkdir(parents=True)
        for one in fetched:
            _unpack(one, temporary, progress)
        if dataset.prepare is not None:
            dataset.prepare(temporary)
        check_counts(dataset, temporary)
        from_where = {one.file.name: {"url": one.url, "sha256": one.sha256} for one in fetched}
        card = Card(FILES if dataset.store else dataset.name, ".")
        terms = {"licence": dataset.licence, "citation": dataset.citation, "homepage": dataset.homepage}
        write_file(temporary / CARD, card.to_json(generator=GENERATOR, **terms, files=from_where))
        _rename(temporary, store)
    except BaseException:
        with suppress(OSError):
            remove_folder(temporary)
        raise


def _unpack(one: Fetched, folder: Path, progress: NamedProgress | None) -> None:
    file, path = one.file, one.path
    place = folder / file.into
    place.mkdir(parents=True, exist_ok=True)
    size = file.unpacked or file.size or 0
    shown = None if progress is None else (lambda done: progress(f"unpacking {file.name}", done, max(size, done)))
    if file.kind == "archive":
        most = None if file.unpacked is None else SPARE_BYTES + MAX_EXPANSION * file.unpacked
        unpack_archive(path, place, only=file.only, nested=file.nested, most=most, progress=shown)
    elif file.kind == "gzip":
        unpack_gzip(path, place / file.name.removesuffix(".gz"), most=file.unpacked, progress=shown)
    elif file.kind == "folder":  # it is not ours to move, and too large to copy
        (place / file.name).symlink_to(os.path.relpath(path, place))
    else:
        shutil.copyfile(path, place / file.name)


def check_counts(dataset: Dataset, folder: Path) -> Data | None:
    if dataset.read is None:
        return None
    data = read_dataset(dataset, folder)
    found = {split: len(source) for split, source in data.splits.items()}
    if found != dict(dataset.splits) or len(data.classes) != dataset.classes:
        raise UserError(
            f"{dataset.name}: {_counts(found)} of {len(data.classes)} classes were found, and "
            f"{_counts(dataset.splits)} of {dataset.classes} were published, so it is not used; get the files again."
        )
    for source in data.splits.values():
        if isinstance(source, FolderSource):
            for index in range(len(source)):
                if not source.path(index).is_file():
                    raise UserError(f"{dataset.name}: {source.key(index)} is missing; get the files again.")
    return data


def _counts(splits: Mapping[Split, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in splits.items())


def _rename(temporary: Path, final: Path) -> None:
    if hasattr(os, "sync"):
        os.sync()  # a hundred thousand files, each made durable by itself, would take minutes
    if final.exists():
        final.rmdir()  # empty, else it had been refused
    temporary.rename(final)
    fsync_file(final.parent)


def _remove(path: Path) -> None:
    """Remove a file that was downloaded; the note goes first, so that it is never found beside another file."""
    origin_of(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)
