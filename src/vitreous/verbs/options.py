"""Options that verbs share: each is written here once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from vitreous.arguments import Count, Merge, Workers
from vitreous.config.engine import EngineChoice, Precision
from vitreous.config.options import Option, positional

MODEL = positional("MODEL", "A bundle, a run folder, an exported model, or anything that `vitreous import` reads.")
NETWORK = positional("MODEL", "A bundle, a run folder, or anything that `vitreous import` reads.")
IMAGES = positional("IMAGE|FOLDER ...", "Image files, and folders of images.")


@dataclass(frozen=True, kw_only=True)
class DeviceOption:
    """Where to compute."""

    device: Annotated[str, Option("auto|cpu|cuda", "Where to compute; auto takes an accelerator if there is one.")] = (
        "auto"
    )


@dataclass(frozen=True, kw_only=True)
class WorkersOption:
    """Who decodes."""

    workers: Annotated[
        Workers | None, Option("COUNT", "Processes that decode images. Default: one per core, at most 4.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunOptions(WorkersOption, DeviceOption):
    """How a training uses the machine: nothing here changes what is computed."""

    out: Annotated[str | Path | None, Option("RUN", "The run folder. Default: runs/ and the name of the data.")] = None
    shard: Annotated[
        bool,
        Option(
            "", "Divide the weights among the processes that torchrun started (FSDP), rather than giving each a copy."
        ),
    ] = False
    tensorboard: Annotated[bool, Option("", "Also write curves for TensorBoard to the run folder.")] = False
    overwrite: Annotated[
        bool, Option("", "Delete the training that the run folder holds, finished or not, and train anew.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class PreprocessOption:
    """How images are prepared."""

    preprocess: Annotated[
        str | None,
        Option(
            "TEXT",
            'Changes to the model\'s preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".',
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SplitOption:
    """Which images of the data."""

    split: Annotated[
        Literal["test", "val", "train"] | None,
        Option("test|val|train", "Which split of the data to use. Default: test if there is one, else val, else all."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class EngineOption(DeviceOption):
    """What computes a model's predictions."""

    engine: Annotated[
        EngineChoice,
        Option(
            "auto|torch|openvino|onnx",
            "What computes. auto takes the fastest that was verified for this model here, and says which.",
        ),
    ] = "auto"
    precision: Annotated[
        Precision | None,
        Option("fp32|int8", "fp32 or int8. Default: of engine auto, whatever is fastest; else fp32."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class EngineOptions(PreprocessOption, EngineOption):
    """What computes, and how images are given to it."""

    batch_size: Annotated[
        Count | None, Option("COUNT", "How many images to pass through the model at once. Default: what is fastest.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class MergeOption:
    """Token merging."""

    merge: Annotated[
        Merge | None,
        Option(
            "COUNT",
            "How many tokens to merge per block: faster, and a little less accurate. Default: as the model says.",
        ),
    ] = None
