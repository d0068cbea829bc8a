"""`vitreous models`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from vitreous.arguments import Count, SideLength
from vitreous.cli.terminal import print_wide, table
from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError
from vitreous.inputs import parse_bytes

if TYPE_CHECKING:
    from vitreous.config.model import ModelConfig
    from vitreous.training.parallelism import GpuPlan


@dataclass(frozen=True)
class ModelRow:
    """One model at one resolution, with 1,000 classes."""

    name: str
    family: str
    image_size: tuple[int, int]
    width: int | None  # this and the next four: None unless a Vision Transformer
    depth: int | None
    heads: int | None
    patch: int | None
    tokens: int | None
    parameters: int
    gflops: float  # of one image's forward pass; a multiply-add counts as two
    activation_mb: float  # millions of bytes that training keeps for one image, in float32
    fit: GpuPlan | None = None  # how it can be trained on the given GPUs


@dataclass(frozen=True)
class WeightsRow:
    """Published weights that have a short name."""

    name: str
    model: str
    parameters: int
    megabytes: float  # of the download
    licence: str
    data: str  # what they were trained on
    accuracy: float  # per cent of ImageNet-1k's validation images, as published
    measured: str  # how: top-1 of the classifier, linear probe ...
    repository: str  # on the Hugging Face hub
    cached: bool  # whether they are on this machine


def weights_rows() -> list[WeightsRow]:
    from vitreous.weights.hub import is_cached
    from vitreous.weights.published import HUB, WEIGHTS

    return [
        WeightsRow(
            name,
            one.model,
            one.parameters,
            round(one.megabytes, 1),
            one.licence,
            one.data,
            one.accuracy,
            one.measured,
            one.repository,
            is_cached(HUB + one.repository),
        )
        for name, one in WEIGHTS.items()
    ]


@dataclass(frozen=True)
class Models(Verb[list[ModelRow] | list[WeightsRow]]):
    """List the model presets with their parameters, GFLOPs and activation memory.

    With --gpus and --memory: which of them can be trained on these, how, and how many images per GPU fit.
    """

    names: Sequence[str] = ()
    """MODEL ...: Which models: SIZE/PATCH or SIZE/PATCH@PIXELS, such as B/16, L/16@384 or Ti/4@32x64; or the name of
    another, such as bit-r50x1 or efficientnet-b0@260. Default: all presets."""
    _: KW_ONLY
    image_size: SideLength | None = None
    """PIXELS: Side of the input in pixels, instead of each model's own."""
    gpus: Count | None = None
    """COUNT: How many GPUs there are to train on."""
    memory: str | int | None = None
    """SIZE: How much memory each of them has, such as 80GB."""
    batch_size: Count | None = None
    """COUNT: How many images a step should have, over all GPUs. Default: as many as fit."""
    weights: bool = False
    """List the published weights that have a short name: every command takes the name as a model, and downloads them
    once."""
    json_help: ClassVar[str] = "Print one JSON list."

    def run(self) -> list[ModelRow] | list[WeightsRow]:
        if self.weights:
            if self.names or self.image_size or self.gpus or self.memory or self.batch_size:
                raise UserError("weights: lists published weights; leave the other options out.")
            return weights_rows()
        from vitreous.model.family import FAMILIES, check_one_size, named_config
        from vitreous.training.parallelism import fit_on_gpus

        for name in self.names:
            check_one_size(name, self.image_size)
        if (self.gpus is None) != (self.memory is None):
            raise UserError("gpus and memory belong together: give both, such as gpus=8 and memory='80GB', or neither.")
        if self.batch_size is not None and self.gpus is None:
            raise UserError("batch_size: of what GPUs; give gpus and memory too, or leave it out.")
        sized = {} if self.image_size is None else {"image_size": (self.image_size, self.image_size)}
        memory = None if self.memory is None else parse_bytes(self.memory, "memory")
        rows = []
        for name in self.names or [name for family in FAMILIES.values() for name in family.config.presets]:
            try:
                config = named_config(name, **sized)
            except UserError:
                if self.names:
                    raise
                continue  # a preset that does not support this image size
            row = _row(name, config)
            if self.gpus is not None and memory is not None:
                row = replace(row, fit=fit_on_gpus(config, self.gpus, memory, self.batch_size))
            rows.append(row)
        return rows

    def to_json(self, result: list[ModelRow] | list[WeightsRow]) -> Any:
        return [asdict(row) for row in result]

    def show(self, result: list[ModelRow] | list[WeightsRow]) -> None:
        presets = [row for row in result if isinstance(row, ModelRow)]
        if self.weights:
            _show_weights([row for row in result if isinstance(row, WeightsRow)])
        elif self.gpus is None:
            _show_costs(presets)
        else:
            _show_fits(presets)


def _row(name: str, config: ModelConfig) -> ModelRow:
    from vitreous.config.model import ViTConfig
    from vitreous.model.family import count_activation_bytes, count_flops, count_parameters

    vit = config if isinstance(config, ViTConfig) else None
    return ModelRow(
        name=name,
        family=config.family,
        image_size=config.image_size,
        **{name: getattr(vit, name, None) for name in ("width", "depth", "heads", "patch")},
        tokens=None if vit is None else vit.prefix + vit.patches,
        parameters=count_parameters(config),
        gflops=round(count_flops(config) / 1e9, 3),
        activation_mb=round(count_activation_bytes(config) / 1e6, 1),
    )


def _show_costs(rows: list[ModelRow]) -> None:
    columns = ("model", "pixels#", "tokens#", "width#", "depth#", "heads#", "parameters#", "GFLOPs#", "training MB#")
    listed = (
        (
            row.name,
            _pixels(row),
            *("" if size is None else str(size) for size in (row.tokens, row.width, row.depth, row.heads)),
            f"{row.parameters:,}",
            f"{row.gflops:,.2f}",
            f"{row.activation_mb:,.1f}",
        )
        for row in rows
    )
    print_wide(
        table(columns, listed),
        "For one image and 1,000 classes. GFLOPs: forward pass; a multiply-add counts as two operations.\n"
        "Training MB: activations that a float32 training step keeps for the backward pass.",
    )


def _show_weights(rows: list[WeightsRow]) -> None:
    columns = ("name", "model", "parameters#", "MB#", "here", "licence", "trained on", "accuracy, %")
    listed = (
        (
            row.name,
            row.model,
            f"{row.parameters:,}",
            f"{row.megabytes:,.0f}",
            "yes" if row.cached else "",
            row.licence,
            row.data,
            f"{row.accuracy:.1f} {row.measured}",
        )
        for row in rows
    )
    print_wide(
        table(columns, listed),
        "Every command takes a name where it takes a model: vitreous explain ti16 cat.jpg. The first use downloads it\n"
        "from the Hugging Face hub (MB); here: it is in the hub's cache already. Accuracy: on ImageNet-1k (IN), as\n"
        "published.",
    )


def _show_fits(rows: list[ModelRow]) -> None:
    """The largest batch per GPU of each parallelism, and which one to choose."""
    from vitreous.training.parallelism import PARALLELISMS, RESERVED_FRACTION

    names, listed = [str(parallelism) for parallelism in PARALLELISMS], []
    for row in rows:
        fit = row.fit
        assert fit is not None
        largest = (fit.largest_batch.get(name) for name in names)
        batches = ("" if batch is None else f"{batch:,}" if batch else "-" for batch in largest)
        parts = "" if fit.micro_batch is None else f", micro_batch={fit.micro_batch}"
        sizes = f"{fit.weights / 1e9:,.2f}", f"{fit.image / 1e6:,.1f}"
        listed.append((row.name, _pixels(row), *sizes, *batches, f"{fit.choice or 'does not fit'}{parts}"))
    print_wide(
        table(("model", "pixels#", "weights GB#", "image MB#", *(f"{name}#" for name in names), "choose"), listed),
        "Largest batch per GPU for each way to divide a training with AdamW in mixed precision (bfloat16).\n"
        "DDP: every GPU holds all weights, gradients and moments. shard (--fsdp, FSDP): an equal part of them.\n"
        "activation_checkpointing: blocks are computed again in the backward pass, which takes a third more time.\n"
        f"{RESERVED_FRACTION:.0%} of the memory is left free. Computed; docs/scale.md says how far it agrees with "
        "measurements.",
    )


def _pixels(row: ModelRow) -> str:
    height, width = row.image_size
    return str(height) if height == width else f"{height}x{width}"


models = verb(Models)
