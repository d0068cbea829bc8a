"""`vitreous models`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from vitreous.arguments import Count, Pixels
from vitreous.cli.terminal import console, table
from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.config.model import ModelConfig
    from vitreous.training.parallelism import GpuPlan


@dataclass(frozen=True)
class ModelRow:
    """One model at one resolution, with 1,000 classes."""

    name: str
    family: str
    image_size: tuple[int, int]
    width: int | None
    """This and the next four are of a Vision Transformer; None for other families."""
    depth: int | None
    heads: int | None
    patch: int | None
    tokens: int | None
    parameters: int
    gflops: float
    """Billions of floating-point operations for one image, forward; a multiplication and an addition are two."""
    activation_mb: float
    """Millions of bytes that training keeps for one image, in float32."""
    fit: GpuPlan | None = None
    """How it can be trained on the GPUs that were asked about."""


@dataclass(frozen=True)
class Models(Verb[list[ModelRow]]):
    """List the model presets with their parameters, GFLOPs and activation memory.

    With --gpus and --memory: which of them can be trained on these, how, and how many images per GPU fit.
    """

    names: Sequence[str] = ()
    """MODEL ...: Which models: SIZE/PATCH or SIZE/PATCH@PIXELS, such as B/16, L/16@384 or Ti/4@32x64; or the name of
    another, such as bit-r50x1 or efficientnet-b0@260. Default: all presets."""
    _: KW_ONLY
    image_size: Pixels | None = None
    """PIXELS: Side of the input in pixels, instead of each model's own."""
    gpus: Count | None = None
    """COUNT: How many GPUs there are to train on."""
    memory: str | int | None = None
    """SIZE: How much memory each of them has, such as 80GB."""
    batch_size: Count | None = None
    """COUNT: How many images a step should have, over all GPUs. Default: as many as fit."""
    json_help: ClassVar[str] = "Print one JSON list."

    def run(self) -> list[ModelRow]:
        """The cost of the named models, or of all that the image size suits: a ViT's patch must divide it."""
        from vitreous.inputs import parse_size
        from vitreous.model.family import FAMILIES, check_one_size, named_config
        from vitreous.training.parallelism import fit_on

        for name in self.names:
            check_one_size(name, self.image_size)
        if (self.gpus is None) != (self.memory is None):
            raise UserError("gpus and memory belong together: give both, such as gpus=8 and memory='80GB', or neither.")
        if self.batch_size is not None and self.gpus is None:
            raise UserError("batch_size: of what GPUs; give gpus and memory too, or leave it out.")
        sized = {} if self.image_size is None else {"image_size": (self.image_size, self.image_size)}
        listed = self.names or [name for family in FAMILIES.values() for name in family.names]
        found = [(name, named_config(name, **sized) if self.names else _fitting(name, sized)) for name in listed]
        rows = [(config, _row(name, config)) for name, config in found if config is not None]
        if self.gpus is None or self.memory is None:
            return [row for _, row in rows]
        each = parse_size(self.memory, "memory")
        return [replace(row, fit=fit_on(config, self.gpus, each, self.batch_size)) for config, row in rows]

    def to_json(self, result: list[ModelRow]) -> Any:
        """Every field."""
        return [asdict(row) for row in result]

    def show(self, result: list[ModelRow]) -> None:
        """A table of costs, or of what fits on GPUs."""
        if self.gpus is None:
            _print_costs(result)
        else:
            _print_fits(result)


def _print_costs(rows: list[ModelRow]) -> None:
    listed = table(
        "model", "pixels#", "tokens#", "width#", "depth#", "heads#", "parameters#", "GFLOPs#", "training MB#"
    )
    for row in rows:
        shape = (_pixels(row), row.tokens, row.width, row.depth, row.heads)
        listed.add_row(
            row.name,
            *("" if one is None else str(one) for one in shape),
            f"{row.parameters:,}",
            f"{row.gflops:,.2f}",
            f"{row.activation_mb:,.1f}",
        )
    page = console()
    page.print(listed)
    page.print(
        "For one image and 1,000 classes. GFLOPs: forward pass; a multiply-add counts as two operations.\n"
        "Training MB: activations that a float32 training step keeps for the backward pass."
    )


def _print_fits(rows: list[ModelRow]) -> None:
    """The largest batch per GPU of each way to divide a training, and which way to choose."""
    from vitreous.training.parallelism import RESERVE, WAYS

    ways = [str(way) for way in WAYS]
    listed = table("model", "pixels#", "weights GB#", "image MB#", *(f"{way}#" for way in ways), "choose")
    for row in rows:
        assert row.fit is not None
        batches = (row.fit.largest_batch.get(way) for way in ways)
        listed.add_row(
            row.name,
            _pixels(row),
            f"{row.fit.weights / 1e9:,.2f}",
            f"{row.fit.image / 1e6:,.1f}",
            *("" if most is None else f"{most:,}" if most else "-" for most in batches),
            _choice(row.fit),
        )
    page = console()
    page.print(listed)
    page.print(
        "Images per GPU at most, for each way to divide a training with AdamW in mixed precision (bfloat16).\n"
        "DDP: every GPU holds all weights, as many gradients, and twice as many moments. shard (--shard): its share\n"
        "of them. activation_checkpointing: blocks are computed again in the backward pass, a third more time.\n"
        f"{RESERVE:.0%} of the memory is left free. Computed; docs/scale.md says how far it agrees with measurements."
    )


def _choice(fit: GpuPlan) -> str:
    if fit.choice is None:
        return "does not fit"
    return fit.choice + (f", accumulate={fit.accumulate}" if fit.accumulate > 1 else "")


def _pixels(row: ModelRow) -> str:
    height, width = row.image_size
    return str(height) if height == width else f"{height}x{width}"


def _fitting(name: str, sized: dict[str, tuple[int, int]]) -> ModelConfig | None:
    """The preset at this image size; None if it cannot look at images of that."""
    from vitreous.model.family import named_config

    try:
        return named_config(name, **sized)
    except UserError:
        return None


def _row(name: str, config: ModelConfig) -> ModelRow:
    from vitreous.config.model import ViTConfig
    from vitreous.model.family import count_activation_bytes, count_flops, count_parameters

    vit = config if isinstance(config, ViTConfig) else None
    return ModelRow(
        name=name,
        family=config.family,
        image_size=config.image_size,
        width=None if vit is None else vit.width,
        depth=None if vit is None else vit.depth,
        heads=None if vit is None else vit.heads,
        patch=None if vit is None else vit.patch,
        tokens=None if vit is None else vit.prefix + vit.patches,
        parameters=count_parameters(config),
        gflops=round(count_flops(config) / 1e9, 3),
        activation_mb=round(count_activation_bytes(config) / 1e6, 1),
    )


models = verb(Models)
