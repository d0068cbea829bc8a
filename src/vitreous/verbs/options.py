"""Options that several verbs share, and the base class of verbs that process images one by one."""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from vitreous.arguments import Count, OneOf, Precision, TokenMerge, Workers
from vitreous.cli.terminal import printable
from vitreous.cli.verb import Verb
from vitreous.config.data import Preprocess
from vitreous.errors import UserError
from vitreous.storage.overwrite import check_file, output_folder, real_path

if TYPE_CHECKING:
    from vitreous.data.decode import ImageError
    from vitreous.inference.engine import InferenceModel
    from vitreous.weights.bundle import Bundle

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DeviceOption:
    """The device."""

    device: str = "auto"
    """auto|cpu|cuda: Where to compute; auto takes an accelerator if there is one."""


@dataclass(frozen=True, kw_only=True)
class WorkersOption:
    """The number of worker processes."""

    workers: Workers | None = None
    """COUNT: Processes that decode images. Default: one per core, at most 4."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(WorkersOption, DeviceOption):
    """How a training uses the machine: nothing here changes its result."""

    out: str | Path | None = None
    """FOLDER: The run folder. Default: runs/ and the name of the data."""
    fsdp: bool = False
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
    """The split of the data."""

    split: Literal["test", "val", "train"] | None = None
    """Which split of the data to use. Default: test if there is one, else val, else all."""


@dataclass(frozen=True, kw_only=True)
class MergeOption:
    """Token merging."""

    merge: TokenMerge | None = None
    """COUNT: How many tokens to merge per block: faster, and a little less accurate. Default: as the model says."""


def engine_names(*, converted: bool = False) -> list[str]:
    """The rows of the table of engines. converted: only those that a model can be exported for."""
    from vitreous.inference.engines import ENGINES

    return [name for name, kind in ENGINES.items() if kind.files or not converted]


@dataclass(frozen=True, kw_only=True)
class EngineOption(DeviceOption):
    """The engine that runs a model."""

    engine: Literal["auto"] | Annotated[str, OneOf(engine_names)] = "auto"
    """auto|torch|openvino|onnx: What computes. auto takes the fastest that was verified for this model here, and says
    which; on an accelerator that is always torch."""
    precision: Precision | None = None
    """fp32|bf16|fp16|int8: fp32; bf16 or fp16 in torch, mainly for accelerators; or int8 in openvino. Default: fp32,
    and of engine auto whatever is fastest of fp32 and int8."""


@dataclass(frozen=True)
class EngineOptions(PreprocessOption, EngineOption, Verb[R]):
    """A model, its engine, and its preprocessing."""

    model: str | Path | Bundle
    """MODEL: A bundle, a run folder, an exported model, or anything that `vitreous import` reads."""
    batch_size: Count | None = field(default=None, kw_only=True)
    """COUNT: How many images to pass through the model at once. Default: what is fastest."""

    def check_device(self) -> bool:
        """Whether the model is an exported one; refuses a device that the engine does not use."""
        from vitreous.inference.engine_folder import is_engine
        from vitreous.weights.bundle import Bundle

        exported = not isinstance(self.model, Bundle) and is_engine(Path(self.model))
        if self.device not in ("auto", "cpu") and (exported or self.engine not in ("auto", "torch")):
            which = f"{self.model} is computed" if exported else f"the engine {self.engine} computes"
            raise UserError(f"device {self.device!r}: {which} on the processor; leave the device out.")
        return exported

    def open_engine(
        self, images: int, *, merge: int | None = None, precision: Precision | None = None, classifier: bool = True
    ) -> InferenceModel:
        """The model in the engine of these options, for this number of images. precision: the default."""
        from vitreous.inference.opening import open_engine

        exported = self.check_device()
        return open_engine(
            self.model,
            engine=self.engine,
            precision=precision if self.precision is None and not exported else self.precision,
            preprocess=self.preprocess,
            merge=merge,
            device=self.device,
            images=images,
            classifier=classifier,
        )


@dataclass(frozen=True)
class PerImageVerb(Verb[R]):
    """A verb with one result per image."""

    model: str | Path | Bundle
    """MODEL: A bundle, a run folder, a published name such as s16, or anything that `vitreous import` reads."""
    images: str | Path | Sequence[str | Path]
    """IMAGE|FOLDER ...: Image files, and folders of images."""

    @abstractmethod
    def line(self, one: Any) -> str:
        """The line to print for a readable image."""

    def show(self, result: Any) -> None:
        from vitreous.data.decode import ImageError

        for one in result:
            if isinstance(one, ImageError):
                print(f"vitreous: {printable(one.name)}: {one.reason}", file=sys.stderr)
            else:
                print(printable(self.line(one)), flush=True)

    @abstractmethod
    def record(self, one: Any) -> dict[str, Any]:
        """What --json prints for a readable image."""

    def to_json(self, result: Any) -> Any:
        """Of each image its record, or {"path", "error"}."""
        from vitreous.data.decode import ImageError

        records = (
            {"path": one.name, "error": one.reason} if isinstance(one, ImageError) else self.record(one)
            for one in result
        )
        return records if self.streams else list(records)

    def status(self, result: Any) -> int:
        """1 if an image could not be read."""
        return int(result.unreadable > 0)

    def name_outputs(self, out: str | Path | None, paths: Sequence[Path], *endings: str) -> list[list[Path]]:
        """The files to write for each image, one per ending, in the folder `out`, named after the image.

        Names are unique and never that of an input image: a number is appended. Refused before any image is read: an
        existing file of such a name that is not ours, and an `out` inside a folder of images, where the next command
        would take the outputs for images.
        """
        if out is None:
            return [[] for _ in paths]
        place, files = output_folder(out), set(paths)
        for folder in map(Path, [self.images] if isinstance(self.images, str | Path) else self.images):
            if folder not in files and real_path(place).is_relative_to(images := real_path(folder)):
                raise UserError(
                    f"out {place}: is inside {folder}, a folder of the images, so its files would be taken for images "
                    f"too; write to another, such as {images.with_name(f'{images.name}-{place.name}')}."
                )
        taken = set(map(os.path.realpath, paths))  # `Path.resolve` fails at a link to itself
        outputs = []
        for path in paths:
            for number in count(1):
                stem = path.stem if number == 1 else f"{path.stem}-{number}"
                named = [place / f"{stem}{ending}" for ending in endings]
                if taken.isdisjoint(map(os.path.realpath, named)):
                    break
            taken.update(map(os.path.realpath, named))
            outputs.append([check_file(file) for file in named])
        return outputs


def results_or_errors(function: Callable[..., T], arguments: Iterable[Iterable[Any]]) -> Iterator[T | ImageError]:
    """The function's result for each image, or the `ImageError` of one that cannot be read."""
    from vitreous.data.decode import ImageError

    for given in arguments:
        try:
            result: T | ImageError = function(*given)
        except ImageError as error:
            result = error
        yield result


class ImageResults(Generic[T]):
    """An iterator over results that counts the images that could not be read."""

    def __init__(self, results: Iterator[T], failed: Callable[[T], bool]) -> None:
        self._results, self._failed = results, failed
        self.unreadable = 0  # images so far

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        result = next(self._results)
        self.unreadable += self._failed(result)
        return result
