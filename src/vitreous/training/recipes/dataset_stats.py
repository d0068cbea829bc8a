"""What is known before a training, and what recipes make of it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from vitreous.config.data import Preprocess
from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.config.objective import Supervised
from vitreous.errors import UserError
from vitreous.model.family import for_classes, for_size, named_config

SMALL_SIDE = 64
"""Images up to this side are looked at as they are, in patches of 4 pixels."""
MANY = 10_000
"""Images that are many: enough for a whitened start, which does harm with few, and to trust what they teach
(docs/log.md)."""


Schedule = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class DatasetStats:
    """What is known before a training: the data, the weights to start from, and what the person asked for."""

    classes: int
    images: int
    """In the train split."""
    side: int
    """The typical short side of an image, in pixels."""
    channels: int
    base: ModelConfig | None = None
    """The model that the given weights belong to; None when training from scratch."""
    base_preprocess: Preprocess | None = None
    model: str | None = None
    image_size: int | None = None
    tested: bool = False
    """Whether the data have a test split."""
    affordable: float = 0.0
    """Floating-point operations that a training may take of itself; 0 where a person has said how long it takes."""

    def built(self, default: str, **overrides: object) -> tuple[ModelConfig, Preprocess]:
        """The model to train and what its images go through first: the weights' own, or a preset's.

        overrides: fields to set, those that a model of this family has.
        """
        if self.base is not None and self.base_preprocess is not None:
            size = self.base.image_size if self.image_size is None else (self.image_size, self.image_size)
            config, preprocess = for_classes(self.base, self.classes), replace(self.base_preprocess, size=size)
        else:
            config = named_config(self.model or default, classes=self.classes, channels=self.channels)
            size = config.image_size if self.image_size is None else (self.image_size, self.image_size)
            config = with_fields(config, image_size=size)
            grey = (0.5,) * self.channels
            preprocess = Preprocess(size=size, mean=grey, std=grey)
        if size != config.image_size:
            config = for_size(config, size)
        return with_fields(config, **overrides), preprocess


def with_fields(config: ModelConfig, **overrides: object) -> ModelConfig:
    """The configuration with these fields set, those of them that its family has."""
    known = {field.name for field in fields(config)}
    changed: ModelConfig = replace(config, **{name: new for name, new in overrides.items() if name in known})
    return changed


def labelled(model: ModelConfig, schedule: Schedule = (), smoothing: float = 0.0) -> Supervised:
    """Cross-entropy, with a keep schedule where the model can leave patches out."""
    return Supervised(smoothing, keep_schedule=schedule if starts_with_patches(model) else ())


def starts_with_patches(model: ModelConfig) -> bool:
    """Whether pixels enter as patches: some can then be left out, and their projection can start whitened."""
    return isinstance(model, ViTConfig) and model.stem is None


def published_side(base: ModelConfig | None) -> int:
    """The side at which the paper fine-tunes, 384 pixels, or the whole patches in that."""
    patch = base.patch if isinstance(base, ViTConfig) else 1
    return 384 // patch * patch


def small_side(s: DatasetStats) -> int:
    """The side at which small images are looked at, in whole patches of 4."""
    if s.image_size is None:
        return min(SMALL_SIDE, max(8, 4 * round(s.side / 4)))
    if s.image_size % 4 or s.image_size < 8:
        raise UserError(
            f"image size {s.image_size}: for small images give a multiple of 4, at least 8, such as 28 or 32."
        )
    return s.image_size
