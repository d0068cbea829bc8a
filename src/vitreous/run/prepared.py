"""Converted forms of a model that are kept on this machine, and how fast each is.

They lie beside the features (`VITREOUS_CACHE`), in a folder named after a digest of the model.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from vitreous.config.engine import EngineName, Precision
from vitreous.config.fields import from_fields
from vitreous.deploy.engine import Deployed, Engine
from vitreous.deploy.folder import About, is_engine, load_engine, save_engine
from vitreous.deploy.runtime import RUNTIMES
from vitreous.deploy.speed import describe_machine, measure_speeds
from vitreous.errors import UserError
from vitreous.evaluate.feature_cache import default_folder
from vitreous.inputs import read_json
from vitreous.run.conversion import Converted, engine_card, model_digest
from vitreous.weights.bundle import Bundle
from vitreous.weights.files import write_file

LIMIT = 8 * 2**30
"""Bytes that converted models may take: beyond that, those of the model that was not used for longest are removed."""
SPEEDS = "speeds.json"

log = logging.getLogger("vitreous")


class Variant(NamedTuple):
    """One way to compute a model."""

    engine: EngineName
    precision: Precision

    def __str__(self) -> str:
        return f"{self.engine}-{self.precision}"


TORCH = Variant("torch", "fp32")
CONVERTED = tuple(
    Variant(cast("EngineName", name), precision)
    for name, runtime in RUNTIMES.items()
    for precision in (("fp32", "int8") if runtime.quantise else ("fp32",))
)
"""All that a model can be converted to."""


@dataclass(frozen=True)
class Speeds:
    """As they are kept: pictures a second of each variant, and what machine that was."""

    machine: str
    speeds: dict[str, float] = field(default_factory=dict)


class PreparedEngines:
    """The converted forms of one model."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.folder = default_folder().with_name("engines") / model_digest(bundle)

    def get(self, variant: Variant) -> tuple[Deployed, About] | None:
        """What was kept of this kind; None if there is none, or its runtime is not installed, or it is damaged."""
        place = self.folder / str(variant)
        if variant not in CONVERTED or not RUNTIMES[variant.engine].installed or not is_engine(place):
            return None
        try:
            return load_engine(place)
        except UserError as error:
            log.info(f"{str(error).rstrip('.')}; it counts as not there.")
            return None

    def put(self, converted: Converted) -> Deployed:
        """Keep a converted model, where that is possible, and open it. Speeds must be measured again."""
        about = converted.about
        variant = Variant(about.runtime, about.precision)
        try:
            save_engine(self.folder / str(variant), converted.model, about, engine_card(self.bundle, about))
        except UserError as error:
            log.info(f"the converted model could not be kept ({str(error).rstrip('.')}); set VITREOUS_CACHE elsewhere.")
        else:
            _shrink(self.folder)
        identity = f"{about.source}-{variant}"
        return Deployed(converted.engine, self.bundle.model.config, about.labels, self.bundle.path, identity)

    @property
    def speeds(self) -> dict[Variant, float]:
        """Pictures a second of each variant, if they were measured on a machine like this one."""
        place = self.folder / SPEEDS
        try:
            found = from_fields(Speeds, read_json(place), place)
        except UserError:  # none, or damaged: they are measured again
            return {}
        if found.machine != describe_machine():
            return {}
        return {variant: found.speeds[str(variant)] for variant in (TORCH, *CONVERTED) if str(variant) in found.speeds}

    def measure(self, plain: Engine) -> dict[Variant, float]:
        """Measure all that are kept beside PyTorch, in turns, and remember it."""
        engines = {TORCH: plain}
        for variant in CONVERTED:
            if (found := self.get(variant)) is not None:
                engines[variant] = found[0].engine
        speeds = measure_speeds(engines)
        self.remember(speeds)
        return speeds

    def remember(self, speeds: Mapping[Variant, float]) -> None:
        """Keep speeds that were measured; they replace all earlier ones."""
        known = Speeds(describe_machine(), {str(variant): speed for variant, speed in speeds.items()})
        with suppress(UserError):  # a cache that cannot be written is none
            write_file(self.folder / SPEEDS, json.dumps(asdict(known), indent=2) + "\n")


def _shrink(keep: Path) -> None:
    """Remove converted models beyond the limit, those of the longest unused model first, never those in `keep`."""
    with suppress(OSError):  # another process may be removing the same files
        keep.touch()
        folders = [path for path in keep.parent.iterdir() if path.is_dir()]
        sizes = {path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in folders}
        total = sum(sizes.values())
        for path in sorted(folders, key=lambda path: path.stat().st_mtime):
            if total > LIMIT and path != keep:
                shutil.rmtree(path)
                total -= sizes[path]
