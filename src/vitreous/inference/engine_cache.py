"""Converted forms of a model that are cached on this machine, and how fast each is.

They are in the cache, in a folder named after a digest of the model.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from weakref import WeakKeyDictionary

from vitreous.callbacks import Progress, no_progress
from vitreous.config.fields import from_fields
from vitreous.errors import MachineError, UserError
from vitreous.inference.engine import Engine, InferenceModel
from vitreous.inference.engine_folder import is_engine, load_engine, save_engine
from vitreous.inference.engines import ENGINES, TORCH, Variant, converted_variants
from vitreous.inference.speed import describe_machine, describe_processor, describe_software, measure_speeds
from vitreous.inputs import read_json
from vitreous.model.network import Network
from vitreous.storage.cache import cache_path, evict, mark_used, not_cached
from vitreous.storage.files import remove_folder, write_file
from vitreous.weights.bundle import Bundle, bundle_digest

log = logging.getLogger("vitreous")


@dataclass(frozen=True)
class Speeds:
    """As they are stored: of each machine, images per second of each variant."""

    machines: dict[str, dict[str, float]] = field(default_factory=dict)


_opened: WeakKeyDictionary[Network, dict[Path, InferenceModel]] = WeakKeyDictionary()
"""What was opened for a network, by its folder: whoever keeps a model need not open and compile its engine again."""


class EngineCache:
    """The converted forms of one model."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.folder = cache_path("engines", bundle_digest(bundle))
        self._speeds = self.folder / "speeds.json"

    def get(self, variant: Variant) -> InferenceModel | None:
        """The cached form; None if there is none, its runtime is not installed, or it is damaged.

        What other versions of the software made counts as none, as does int8 that was verified on another processor.
        """
        place = self.folder / str(variant)
        if variant not in converted_variants() or ENGINES[variant.engine].missing or not is_engine(place):
            return None
        opened = _opened.setdefault(self.bundle.model, {})
        if place not in opened:
            try:
                model = load_engine(place)
            except (UserError, OSError) as error:  # damaged, or just being removed by another process
                log.info(f"{str(error).rstrip('.')}; it counts as not there.")
                return None
            # Messages name the person's model, not where its converted form is cached.
            opened[place] = replace(model, path=self.bundle.path, seen_images=self.bundle.seen_images)
        model = opened[place]
        if model.metadata.versions != describe_software():
            return None
        if variant.precision == "int8" and model.metadata.processor != describe_processor():
            return None  # other processors add up bytes otherwise
        mark_used(self.folder)
        return model

    def is_open(self, variant: Variant) -> bool:
        """Whether this process has opened it for this very network, so that it computes at once."""
        return variant == TORCH or self.folder / str(variant) in _opened.get(self.bundle.model, {})

    def put(self, converted: InferenceModel) -> InferenceModel:
        """Cache a converted model, if that is possible, and open it. Speeds must be measured again."""
        variant = Variant(converted.metadata.runtime, converted.metadata.precision)
        place = self.folder / str(variant)
        try:
            remove_folder(place)  # a damaged one, or of other versions
            save_engine(place, converted)
        except (UserError, MachineError, OSError) as error:
            log.info(not_cached("the converted model", error))
        else:
            _opened.get(self.bundle.model, {}).pop(place, None)
            evict(except_for=self.folder)
        return self.get(variant) or converted

    @property
    def speeds(self) -> dict[Variant, float]:
        """Images per second of each variant, as far as they were measured on a machine like this one."""
        known = self._all_speeds().get(describe_machine(), {})
        return {variant: known[str(variant)] for variant in (TORCH, *converted_variants()) if str(variant) in known}

    def _all_speeds(self) -> dict[str, dict[str, float]]:
        try:
            return from_fields(Speeds, read_json(self._speeds), self._speeds).machines
        except UserError:  # none, or damaged: they are measured again
            return {}

    def measure(self, plain: Engine, progress: Progress = no_progress) -> dict[Variant, float]:
        """Measure all that are cached beside PyTorch, in turns, and store the speeds."""
        cached = {variant: self.get(variant) for variant in converted_variants()}
        engines = {variant: model.engine for variant, model in cached.items() if model is not None}
        speeds = measure_speeds({TORCH: plain, **engines}, progress=progress)
        self.remember(speeds)
        return speeds

    def remember(self, speeds: Mapping[Variant, float]) -> None:
        """Store speeds that were measured on this machine; they replace all earlier ones of it."""
        known = self._all_speeds()
        known[describe_machine()] = {str(variant): speed for variant, speed in speeds.items()}
        with suppress(UserError, MachineError):  # a cache that cannot be written is none
            write_file(self._speeds, json.dumps(asdict(Speeds(known)), indent=2) + "\n")
