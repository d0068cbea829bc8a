"""Options that verbs share: each is written here once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitreous.arguments import Count, Merge, Workers
from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineChoice, Precision
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.inference.engine import InferenceModel
    from vitreous.weights.bundle import Bundle


@dataclass(frozen=True, kw_only=True)
class DeviceOption:
    """Where to compute."""

    device: str = "auto"
    """auto|cpu|cuda: Where to compute; auto takes an accelerator if there is one."""


@dataclass(frozen=True, kw_only=True)
class WorkersOption:
    """Who decodes."""

    workers: Workers | None = None
    """COUNT: Processes that decode images. Default: one per core, at most 4."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(WorkersOption, DeviceOption):
    """How a training uses the machine: nothing here changes what is computed."""

    out: str | Path | None = None
    """RUN: The run folder. Default: runs/ and the name of the data."""
    shard: bool = False
    """Divide the weights among the processes that torchrun started (FSDP), rather than giving each a copy."""
    tensorboard: bool = False
    """Also write curves for TensorBoard to the run folder."""
    overwrite: bool = False
    """Delete the training that the run folder holds, finished or not, and train anew."""


@dataclass(frozen=True, kw_only=True)
class StudyOptions(WorkersOption, DeviceOption):
    """Where a study of several trainings is written, and how it uses the machine."""

    out: str | Path | None = None
    """FOLDER: The folder of the study. Default: runs/, the name of the data or the model, and the verb, such as
    runs/photos-compare."""
    overwrite: bool = False
    """Delete the study that the folder holds, finished or not, and begin anew."""


@dataclass(frozen=True, kw_only=True)
class PreprocessOption:
    """How images are prepared."""

    preprocess: Preprocess | str | None = None
    """TEXT: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic"."""


@dataclass(frozen=True, kw_only=True)
class SplitOption:
    """Which images of the data."""

    split: Literal["test", "val", "train"] | None = None
    """Which split of the data to use. Default: test if there is one, else val, else all."""


@dataclass(frozen=True, kw_only=True)
class EngineOption(DeviceOption):
    """What computes a model's predictions."""

    engine: EngineChoice = "auto"
    """auto|torch|openvino|onnx: What computes. auto takes the fastest that was verified for this model here, and says
    which."""
    precision: Precision | None = None
    """fp32|int8: fp32 or int8. Default: of engine auto, whatever is fastest; else fp32."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions(PreprocessOption, EngineOption):
    """What computes, and how images are given to it."""

    batch_size: Count | None = None
    """COUNT: How many images to pass through the model at once. Default: what is fastest."""

    def check_device(self, model: str | Path | Bundle) -> bool:
        """Refuse a device that the engine does not use; whether the model is an exported one."""
        from vitreous.inference.engine_folder import is_engine
        from vitreous.weights.bundle import Bundle

        exported = not isinstance(model, Bundle) and is_engine(Path(model))
        if self.device not in ("auto", "cpu") and (exported or self.engine not in ("auto", "torch")):
            which = f"{model} is computed" if exported else f"the engine {self.engine} computes"
            raise UserError(f"device {self.device!r}: {which} on the processor; leave the device out.")
        return exported

    def open_engine(
        self,
        model: str | Path | Bundle,
        *,
        images: int,
        merge: int | None = None,
        precision: Precision | None = None,
        classifier: bool = True,
    ) -> InferenceModel:
        """The model in the engine of these options, ready for this number of images. precision: if none was given."""
        from vitreous.inference.opening import open_engine

        exported = self.check_device(model)
        return open_engine(
            model,
            engine=self.engine,
            precision=precision if self.precision is None and not exported else self.precision,
            preprocess=self.preprocess,
            merge=merge,
            device=self.device,
            images=images,
            classifier=classifier,
        )


@dataclass(frozen=True, kw_only=True)
class MergeOption:
    """Token merging."""

    merge: Merge | None = None
    """COUNT: How many tokens to merge per block: faster, and a little less accurate. Default: as the model says."""
