"""An exported model as a folder: what a runtime computes, and all that is needed to use it without the network.

engine.json         what it is: runtime, precision, preprocessing, labels, how it was verified
model.xml, .bin     OpenVINO's graph; or model.onnx, ONNX's
README.md           the same for people
manifest.json       size and SHA-256 of each of them, checked at every load
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineName, Precision
from vitreous.config.fields import from_fields
from vitreous.errors import UserError
from vitreous.inference.engine import Deployed
from vitreous.inference.runtime import RUNTIMES, find_runtime
from vitreous.inference.verify import Agreement
from vitreous.inputs import as_text, read_json
from vitreous.model.family import config_from_json
from vitreous.storage.digest import sha256_file
from vitreous.storage.files import new_folder
from vitreous.storage.manifest import MANIFEST, check_manifest, has_manifest, read_manifest
from vitreous.storage.overwrite import GENERATOR
from vitreous.storage.replaced import restore_folder
from vitreous.wording import shown

ABOUT, CARD = "engine.json", "README.md"
FORMAT = 1


@dataclass(frozen=True)
class Accuracy:
    """What int8 costs: the accuracy of both on the same labelled images, from 0 to 1."""

    images: int
    fp32: float
    int8: float

    @property
    def drop(self) -> float:
        """In points of a hundred; below 0 where int8 was right more often."""
        return 100 * (self.fp32 - self.int8)


@dataclass(frozen=True)
class About:
    """What is written about an exported model."""

    runtime: EngineName
    precision: Precision
    model: dict[str, Any]
    """The network's configuration, with its family."""
    preprocess: Preprocess
    labels: tuple[str, ...]
    source: str
    """A digest of the model that it was made from."""
    verified: Agreement
    """Beside the network in PyTorch."""
    accuracy: Accuracy | None = None
    """Of int8, where labelled images were given."""
    accuracy_aware: bool = False
    """Whether some operations were left in float32, because quantising all of them cost too much accuracy."""
    versions: str = ""
    """Of the software that made it."""
    machine: str = ""
    """On which it was verified."""

    def to_json(self) -> dict[str, Any]:
        """As in engine.json."""
        return {"generator": GENERATOR, "format": FORMAT, **asdict(self)}

    @property
    def facts(self) -> dict[str, str]:
        """What the model file itself says, for programs that know nothing of this folder."""
        return {
            "labels": json.dumps(list(self.labels)),
            "preprocess": json.dumps(asdict(self.preprocess)),
            "generator": GENERATOR,
        }


def save_engine(path: Path, model: Any, about: About, card: str) -> Path:
    """Write an exported model, complete or not at all, and return its folder. model: the runtime's."""
    with new_folder(path) as folder:
        try:
            RUNTIMES[about.runtime].write(model, folder)
        except RuntimeError as error:  # OpenVINO's own
            raise UserError(
                f"{path}: cannot be written ({str(error).splitlines()[-1]}); choose another place."
            ) from None
        (folder / ABOUT).write_text(json.dumps(about.to_json(), indent=2) + "\n", encoding="utf-8")
        (folder / CARD).write_text(as_text(card), encoding="utf-8")
    return path


def is_engine(path: Path) -> bool:
    """Whether a folder holds an exported model, be it whole or damaged."""
    try:
        restore_folder(path)
        if not path.is_dir() or not has_manifest(path):
            return False
        return ABOUT in read_manifest(path)
    except OSError:  # no name of a file, say: whoever opens it as something else will tell
        return False
    except UserError:  # damaged: what is there tells
        return (path / ABOUT).exists()


def read_about(folder: Path) -> About:
    """What is written about the model in a folder, after every file's digest was checked."""
    if ABOUT not in (listed := check_manifest(folder)):
        raise UserError(f"{folder / MANIFEST}: does not list {ABOUT}; export the model again.")
    fields = read_json(folder / ABOUT)
    version = fields.pop("format", None) if isinstance(fields, dict) else None
    if version != FORMAT:
        raise UserError(
            f"{folder / ABOUT}: written in format {shown(version)}, and this vitreous reads {FORMAT}; export it again."
        )
    fields.pop("generator", None)
    about = from_fields(About, fields, folder / ABOUT)
    if about.runtime not in RUNTIMES:
        raise UserError(f"{folder / ABOUT}: made for {shown(about.runtime)}, which this vitreous does not know.")
    if missing := [name for name in RUNTIMES[about.runtime].files if name not in listed]:
        raise UserError(f"{folder / MANIFEST}: does not list {missing[0]}; export the model again.")
    return about


def load_engine(folder: Path) -> tuple[Deployed, About]:
    """The exported model in a folder, ready to be asked."""
    about = read_about(folder)
    runtime = find_runtime(about.runtime, f"{folder}: runtime")
    engine = runtime.engine(runtime.read(folder), about.preprocess, about.precision, path=folder)
    config = config_from_json(about.model, str(folder / ABOUT))
    return Deployed(engine, config, about.labels, folder, sha256_file(folder / MANIFEST)), about
