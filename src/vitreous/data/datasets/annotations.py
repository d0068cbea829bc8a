"""Readers of datasets whose classes follow from annotations: CLEVR's scenes, KITTI's boxes. Bins are VTAB's."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.data.datasets.images import ListedImage, lines_of, listed_data
from vitreous.data.source import Data, Split
from vitreous.errors import UserError
from vitreous.inputs import read_text
from vitreous.memory import check_memory

# Where the classes of the nearest object's distance begin, each above its number.
CLEVR_DISTANCES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0)
CLEVR_DISTANCE_NAMES = ("at most 8", "8 to 8.5", "8.5 to 9", "9 to 9.5", "9.5 to 10", "more than 10")
CLEVR_COUNTS = tuple(str(count) for count in range(3, 11))
# The same of the nearest vehicle, in metres; without one it is at 1,000.
KITTI_DISTANCES = (-100.0, 8.0, 20.0, 999.0)
KITTI_NAMES = ("at most 8 m", "8 to 20 m", "more than 20 m", "no vehicle")
KITTI_VEHICLES = ("Car", "Van", "Truck")
MAX_SCENES_BYTES = 2 * 10**9  # of CLEVR's annotations; those of the train split are some hundred million

Scene = dict[str, Any]


def bin_of(value: float, thresholds: tuple[float, ...]) -> int:
    below = [place for place, threshold in enumerate(thresholds) if threshold < value]
    if not below:
        raise UserError(f"{value}: a distance below {thresholds[0]:g}; get the annotations again.")
    return below[-1]


def read_clevr_count(root: Path) -> Data:
    """How many objects there are, 3 to 10."""
    return _clevr(root, lambda scene: len(scene["objects"]) - 3, CLEVR_COUNTS)


def read_clevr_distance(root: Path) -> Data:
    """How far the nearest object is from the camera, in six bins."""

    def label(scene: Scene) -> int:
        return bin_of(min(float(one["pixel_coords"][2]) for one in scene["objects"]), CLEVR_DISTANCES)

    return _clevr(root, label, CLEVR_DISTANCE_NAMES)


def _clevr(root: Path, label: Callable[[Scene], int], classes: tuple[str, ...]) -> Data:
    """CLEVR's train images, and its val images as the test split: those of its test have no annotations."""
    base = root / "CLEVR_v1.0"
    parts: dict[Split, str] = {"train": "train", "test": "val"}
    splits: dict[Split, list[ListedImage]] = {}
    for split, name in parts.items():
        path = base / "scenes" / f"CLEVR_{name}_scenes.json"
        try:
            splits[split] = [(f"images/{name}/{_file(scene)}", label(scene)) for scene in read_scenes(path)]
        except (KeyError, TypeError, IndexError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path}: a scene without what it should have ({error!r:.80}); get it again.") from None
    return listed_data(base, splits, classes)


def _file(scene: Scene) -> str:
    name = scene["image_filename"]
    if not isinstance(name, str) or "/" in name:
        raise ValueError("image_filename")
    return name


def read_scenes(path: Path) -> Iterator[Scene]:
    """The scenes in a file of CLEVR, one after the other: as objects, all at once would take gigabytes."""
    if path.is_file():
        check_memory(5 * path.stat().st_size, str(path), "take a machine with more memory")
    text = read_text(path, MAX_SCENES_BYTES)
    decoder = json.JSONDecoder()
    start = text.find('"scenes"')
    at = text.find("[", start) + 1
    try:
        if start < 0 or not at:
            raise ValueError('there is no list "scenes"')
        while True:
            while text[at : at + 1] in tuple(" \t\r\n,"):
                at += 1
            if text[at : at + 1] == "]":
                return
            scene, at = decoder.raw_decode(text, at)
            yield scene
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not CLEVR's scenes ({str(error)[:200]}); get it again.") from None


def read_kitti(root: Path) -> Data:
    """How far the nearest vehicle is, in four classes; videos are not divided among the splits. Which videos are for
    validation and test is drawn as TensorFlow Datasets does (NumPy's generator with the seed 123), so the splits are
    those of VTAB."""
    splits: dict[Split, list[ListedImage]] = {"train": [], "val": [], "test": []}
    for split, numbers in _kitti_splits(root / "mapping").items():
        for number in numbers:
            distance = _vehicle(root / "training" / "label_2" / f"{number:06d}.txt")
            splits[split].append((f"training/image_2/{number:06d}.png", bin_of(distance, KITTI_DISTANCES)))
    return listed_data(root, splits, KITTI_NAMES)


def _vehicle(path: Path) -> float:
    """Metres to the nearest vehicle: TYPE, 10 numbers, x y z, and one more on each line."""
    nearest = 1000.0
    for line in lines_of(path):
        words = line.split()
        if words[0] in KITTI_VEHICLES:
            try:
                nearest = min(nearest, float(words[13]))
            except (IndexError, ValueError):
                raise UserError(f"{path}: {line[:80]!r} is no box of KITTI; get the annotations again.") from None
    if not math.isfinite(nearest):
        raise UserError(f"{path}: a vehicle at no distance; get the annotations again.")
    return nearest


def _kitti_splits(mapping: Path) -> dict[Split, list[int]]:
    """The numbers of the images in each split: a tenth of the videos for test, a tenth for validation."""
    try:
        places = [int(word) - 1 for word in read_text(mapping / "train_rand.txt").split(",") if word.strip()]
        lines = lines_of(mapping / "train_mapping.txt")
        videos: dict[str, list[int]] = defaultdict(list)
        for number, place in enumerate(places):
            videos[lines[place].split()[1]].append(number)
    except (ValueError, IndexError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{mapping}: not the mapping of KITTI's kit ({error}); get it again.") from None
    rng = np.random.RandomState(123)
    tenth = max(1, len(videos) // 10)
    test = set(rng.choice(sorted(videos), tenth, replace=False).tolist())
    val = set(rng.choice(sorted(set(videos) - test), tenth, replace=False).tolist())
    found: dict[Split, list[int]] = {"train": [], "val": [], "test": []}
    for video, numbers in videos.items():
        found["test" if video in test else "val" if video in val else "train"] += numbers
    return {split: sorted(numbers) for split, numbers in found.items()}
