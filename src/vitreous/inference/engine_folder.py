"""An exported model as a folder: the graph that a runtime computes, and what is needed to use it without the network.

engine.json         its metadata: runtime, precision, preprocessing, labels, how it was verified
model.xml, .bin     OpenVINO's graph; or model.onnx, ONNX's
README.md           the same for people
seen-images.json    after a training: hashes of the images that it has seen
manifest.json       size and SHA-256 of each of them, checked at every load
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitreous.arguments import Count, Precision, shown
from vitreous.config.data import Preprocess
from vitreous.config.fields import from_fields
from vitreous.config.model import with_article
from vitreous.errors import UserError
from vitreous.evaluation.intervals import Paired
from vitreous.inference.engine import GraphEngine, InferenceModel
from vitreous.inference.engines import ENGINES, find_engine
from vitreous.inference.verify import Agreement
from vitreous.inputs import read_json, utf8_text
from vitreous.model.family import config_from_json
from vitreous.storage.files import new_folder
from vitreous.storage.manifest import (
    MANIFEST,
    check_manifest,
    has_manifest,
    read_manifest,
    read_whole,
    restore_folder,
    sha256_file,
)
from vitreous.storage.overwrite import GENERATOR
from vitreous.weights.bundle import SEEN
from vitreous.weights.markdown import code
from vitreous.weights.seen_images import SeenImages

METADATA, CARD = "engine.json", "README.md"
FORMAT = 2


@dataclass(frozen=True)
class Int8Accuracy:
    """Correct predictions in float32 and in int8 for the same labelled images."""

    images: Count
    fp32_correct: int
    only_fp32: int  # images that only float32 has right
    only_int8: int
    labelled: bool = True  # False: the labels are float32's own predictions, so that all of these are correct

    def __str__(self) -> str:
        where = f"{self.images:,} images"
        if not self.labelled:
            return f"on {self.int8:.2%} of {where} without labels int8 has the label of float32"
        return f"accuracy {self.int8:.2%} in int8, {self.fp32:.2%} in float32, on {where}"

    @property
    def fp32(self) -> float:
        return self.fp32_correct / self.images

    @property
    def int8(self) -> float:
        return (self.fp32_correct - self.only_fp32 + self.only_int8) / self.images

    @property
    def drop(self) -> float:
        """In points of a hundred; below 0 if int8 was right more often."""
        return 100 * (self.only_fp32 - self.only_int8) / self.images

    @property
    def max_likely_drop(self) -> float:
        """In points: the end of the 95 % interval of the paired difference."""
        return -100 * Paired("", self.images, self.only_fp32, self.only_int8).interval[0]


@dataclass(frozen=True)
class EngineMetadata:
    """What engine.json says of an exported model."""

    runtime: str
    precision: Precision
    model: dict[str, Any]  # the network's configuration, with its family
    preprocess: Preprocess
    labels: tuple[str, ...]
    source: str  # a digest of the model that it was made from
    verified: Agreement  # with the network in PyTorch
    accuracy: Int8Accuracy | None = None
    """Of int8, on images that neither calibrated it nor chose which of its operations stay in float32."""
    accuracy_control: bool = False
    """Whether some operations were left in float32, because int8 in all of them cost too much accuracy."""
    versions: str = ""  # of the software that made it
    processor: str = ""  # on which it was verified


def save_engine(path: Path, model: InferenceModel) -> Path:
    """Write a converted model, complete or not at all, and return its folder."""
    assert isinstance(model.engine, GraphEngine)
    metadata = model.metadata
    with new_folder(path) as folder:
        try:
            ENGINES[metadata.runtime].write(model.engine.graph, folder)
        except RuntimeError as error:  # OpenVINO's own
            raise UserError(
                f"{path}: cannot be written ({str(error).splitlines()[-1]}); choose another place."
            ) from None
        written = {"generator": GENERATOR, "format": FORMAT, **asdict(metadata)}
        (folder / METADATA).write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        (folder / CARD).write_text(utf8_text(engine_card(metadata)), encoding="utf-8")
        if model.seen_images is not None:
            (folder / SEEN).write_text(json.dumps(model.seen_images.to_json(), indent=2) + "\n", encoding="utf-8")
    return path


def is_engine(path: Path) -> bool:
    try:
        restore_folder(path)
        if not path.is_dir() or not has_manifest(path):
            return False
        return METADATA in read_manifest(path)
    except OSError:  # no name of a file, say: whoever opens it as something else will tell
        return False
    except UserError:  # damaged: what is there tells
        return (path / METADATA).exists()


def read_metadata(folder: Path) -> EngineMetadata:
    """The metadata of an exported model, after every file's digest was checked."""
    if METADATA not in (listed := check_manifest(folder)):
        raise UserError(f"{folder / MANIFEST}: does not list {METADATA}; export the model again.")
    fields = read_json(folder / METADATA)
    version = fields.pop("format", None) if isinstance(fields, dict) else None
    if version != FORMAT:
        raise UserError(
            f"{folder / METADATA}: written in format {shown(version)}, and this vitreous reads {FORMAT}; export it "
            "again."
        )
    fields.pop("generator", None)
    metadata = from_fields(EngineMetadata, fields, folder / METADATA)
    if metadata.runtime not in ENGINES or not ENGINES[metadata.runtime].files:
        raise UserError(f"{folder / METADATA}: made for {shown(metadata.runtime)}, which this vitreous does not know.")
    if missing := [name for name in ENGINES[metadata.runtime].files if name not in listed]:
        raise UserError(f"{folder / MANIFEST}: does not list {missing[0]}; export the model again.")
    return metadata


def load_engine(folder: Path) -> InferenceModel:
    def load() -> InferenceModel:
        metadata = read_metadata(folder)
        kind = find_engine(metadata.runtime, f"{folder}: runtime")
        engine = kind.engine(kind.read(folder), metadata.preprocess, metadata.precision, path=folder)
        config = config_from_json(metadata.model, str(folder / METADATA))
        seen = SeenImages.from_json(read_json(folder / SEEN), folder / SEEN) if (folder / SEEN).exists() else None
        return InferenceModel(engine, config, metadata.labels, folder, sha256_file(folder / MANIFEST), metadata, seen)

    return read_whole(folder, load)


def engine_card(metadata: EngineMetadata) -> str:
    config = config_from_json(metadata.model, METADATA)
    height, width = metadata.preprocess.size
    verified, accuracy = metadata.verified, metadata.accuracy
    outputs = (
        "probabilities, logits and a representation" if metadata.labels else "a representation (it has no classifier)"
    )
    precision = "float32" if metadata.precision == "fp32" else "int8"
    paragraphs = [
        f"# {with_article(config.title())} for {ENGINES[metadata.runtime].title}, {precision}",
        f"{with_article(config.describe())}. Input: uint8 (count, {metadata.preprocess.channels}, {height}, {width}), "
        f"not normalised. Outputs: {outputs}.",
        f"Compared with the network in PyTorch on {verified.images:,} images: {verified.same_label:,} have the same "
        f"label, {verified.equal:,} the same numbers up to rounding. Probabilities differ by at most "
        f"{verified.max_probability_difference:.2g}, representations by {verified.max_representation_difference:.2g} "
        "of the largest number.",
    ]
    if accuracy is not None:
        control = "; the costliest operations stayed in float32" if metadata.accuracy_control else ""
        paragraphs.append(f"Measured on images that decided nothing in the conversion: {accuracy}{control}.")
    if metadata.labels:
        some = ", ".join(map(code, metadata.labels[:20])) + (", ..." if len(metadata.labels) > 20 else "")
        paragraphs.append(f"{len(metadata.labels)} classes: {some}.")
    paragraphs += [
        "    vitreous predict FOLDER_OF_THIS_FILE image.jpg",
        "Class names and preprocessing are in `engine.json` and in the model file's own metadata. `manifest.json` has "
        "the SHA-256 of every file; loading checks it.",
    ]
    return "\n\n".join(paragraphs) + "\n"
