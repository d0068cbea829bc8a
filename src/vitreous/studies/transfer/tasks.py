"""What a person calls tasks, opened: rows of the table of datasets, groups of VTAB, and any data with labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from vitreous.data.datasets.dataset import Dataset, Group, Vtab
from vitreous.data.datasets.images import has_vtab_lists
from vitreous.data.datasets.store import PREFIX, data_root, is_here, read_card
from vitreous.data.datasets.table import DATASETS
from vitreous.data.datasets.vtab import TRAIN, VAL
from vitreous.data.duplicates import note_duplicates
from vitreous.data.opening import BUILTIN, open_dataset
from vitreous.data.shards.opening import is_shards
from vitreous.data.shards.reading import without_query
from vitreous.data.source import Data, Source, Split, split_validation
from vitreous.errors import UserError
from vitreous.inference.probing import HELD_OUT, check_labelled
from vitreous.studies.requests import Protocol
from vitreous.studies.transfer.result import GROUPS, Absent, Task
from vitreous.training.folder import count_images, digest_splits, run_name
from vitreous.training.request import normalised_path

ALL = "all"
SEED = 0  # of held-out images and random subsets: the same for every model


@dataclass(frozen=True)
class NamedTask:
    """A task as a person named it, not opened yet."""

    name: str
    place: str  # `data:NAME`, a path, or an address
    dataset: Dataset | None  # the row of the table that it is

    @property
    def vtab(self) -> Vtab | None:
        return None if self.dataset is None else self.dataset.vtab

    @property
    def group(self) -> Group | None:
        return None if self.vtab is None else self.vtab.group

    @property
    def varied(self) -> bool:
        """Whether training images may be cropped and mirrored without changing the answer, as far as is known."""
        return self.dataset is None or self.dataset.varied

    @property
    def on_machine(self) -> bool:
        """Whether its data are here; of a path that is not asked, for a wrong one is a mistake."""
        return self.dataset is None or not self.place.startswith(PREFIX) or is_here(self.dataset, data_root())

    def absent(self, protocol: Protocol | None, reason: str) -> Absent:
        return Absent(self.name, self.group, protocol, reason)


@dataclass(frozen=True)
class OpenTask(NamedTask):
    """A task with its images."""

    data: Data  # with a test split
    summary: Task


def name_tasks(texts: Sequence[str | Path]) -> tuple[NamedTask, ...]:
    """The tasks, each once: "natural", "specialized", "structured" or "all" of VTAB; names of the table, with or
    without "data:"; paths or addresses of data with labels; NAME=PATH for a row of the table, or to give a name."""
    if not texts:
        raise UserError(f"tasks: none given; name some, such as {', '.join(GROUPS)}, {ALL}, pets, or a path.")
    found: dict[str, NamedTask] = {}
    for task in (task for text in texts for task in _named(str(text))):
        if found.setdefault(task.name, task).place != task.place:
            raise UserError(f"tasks: two are called {task.name!r}; give one another name: {task.name}-2=PATH.")
    return tuple(found.values())


def _named(text: str) -> Iterator[NamedTask]:
    name, equals, place = text.partition("=")
    if equals and "/" not in name and ":" not in name:
        if not name or not place:
            raise UserError(f"tasks: {text!r}: write NAME=PATH.")
        yield NamedTask(_called(name), _path(place), DATASETS.get(name))
    elif text == ALL or text in GROUPS:
        for dataset in DATASETS.values():
            if dataset.vtab is not None and text in (ALL, dataset.vtab.group):
                yield NamedTask(dataset.name, PREFIX + dataset.name, dataset)
    elif (dataset_name := text.removeprefix(PREFIX)) in DATASETS:
        yield NamedTask(dataset_name, PREFIX + dataset_name, DATASETS[dataset_name])
    else:
        place = _path(text)
        card = read_card(Path(place)) if place != BUILTIN and Path(place).is_dir() else None
        row = None if card is None else DATASETS.get(card.dataset)
        yield NamedTask(_called(run_name(place)) if row is None else row.name, place, row)


def _called(name: str) -> str:
    """A name that files can have too."""
    return re.sub(r"[^\w.+@-]", "_", name)


def _path(text: str) -> str:
    """A path to data, the word builtin, or shards, which may be far; what is none of these is refused."""
    try:
        if text == BUILTIN or is_shards(text) or Path(text).exists():
            return normalised_path(text)
    except UserError:
        raise
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, links in a circle
        pass
    near = get_close_matches(text.removeprefix(PREFIX), [*GROUPS, ALL, *DATASETS], n=1)
    meant = f"did you mean {near[0]}?" if near else "`vitreous data list` shows the names."
    raise UserError(f"tasks: {text[:300]!r} is no dataset of the table, and nothing lies at this path; {meant}")


def open_task(named: NamedTask) -> OpenTask:
    """Its data, with a test split: where the data have none, the val split, else a fifth of each class."""
    opened = note_duplicates(open_dataset(named.place))
    check_labelled(opened)
    data, measured, remarks = _with_test(opened)
    counts = count_images(opened)
    published = None if named.dataset is None else counts == dict(named.dataset.splits)
    own_draw = _is_own_draw(named, counts)
    if named.dataset is not None and not published:
        there = ", ".join(f"{count:,} {split}" for split, count in counts.items())
        meant = ", ".join(f"{count:,} {split}" for split, count in named.dataset.splits.items())
        only = " Protocols other than vtab-1k learn from VTAB-1k's images alone." if own_draw else ""
        remarks = (*remarks, f"{there} images; as published there are {meant}.{only}")
    summary = Task(
        name=named.name,
        place=without_query(named.place),  # which may be a key, and the page is shown to others
        dataset=None if named.dataset is None else named.dataset.name,
        group=named.group,
        classes=len(data.classes),
        splits={measured if split == "test" else split: len(source) for split, source in data.splits.items()},
        digests={measured if split == "test" else str(split): one for split, one in digest_splits(data).items()},
        as_published=published,
        published=None if named.dataset is None else {str(split): n for split, n in named.dataset.splits.items()},
        remarks=(*remarks, *_remarks_of_row(named), *opened.notes),
        measured=measured,
        own_draw=own_draw,
    )
    return OpenTask(named.name, named.place, named.dataset, data, summary)


def _remarks_of_row(named: NamedTask) -> tuple[str, ...]:
    """The table's remarks, if the data came through it: for other copies they may not hold."""
    if named.dataset is None:
        return ()
    card = None if named.place.startswith(PREFIX) else read_card(Path(named.place))
    brought = named.place.startswith(PREFIX) or (card is not None and card.dataset == named.dataset.name)
    return named.dataset.remarks if brought else ()


def _is_own_draw(named: NamedTask, counts: Mapping[Split, int]) -> bool:
    """Whether the data are VTAB-1k's very images, by its lists, with all test images that were published."""
    if named.dataset is None or named.vtab is None or named.place == BUILTIN or not has_vtab_lists(Path(named.place)):
        return False
    return counts == {"train": TRAIN, "val": VAL, "test": named.dataset.splits.get("test")}


def _with_test(data: Data) -> tuple[Data, str, tuple[str, ...]]:
    """The data with the images to measure as their test split, what these are, and a note."""
    if "test" in data.splits:
        return data, "test", ()
    train = data.train  # refused where there is none
    if "val" in data.splits:
        note = "no test split: the validation images are measured, and choose nothing."
        return replace(data, splits={"train": train, "test": data.splits["val"]}), "val", (note,)
    train, test = split_validation(train, HELD_OUT, SEED)
    splits: dict[Split, Source] = {"train": train, "test": test}
    note = f"no test split: {HELD_OUT:.0%} of each class are set aside, chosen by a hash of their names, and measured."
    return replace(data, splits=splits), "held-out", (note,)
