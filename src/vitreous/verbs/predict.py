"""`vitreous predict`: labels for images, printed, returned, or written to files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from vitreous.arguments import Count, WorkSlice
from vitreous.cli.terminal import printable
from vitreous.cli.verb import verb
from vitreous.errors import UserError
from vitreous.inputs import counted
from vitreous.storage.overwrite import output_folder
from vitreous.verbs.options import EngineOptions, ImageResults, MergeOption

if TYPE_CHECKING:
    from vitreous.data.view import ImageInput
    from vitreous.inference.engine import InferenceModel
    from vitreous.inference.parts import PredictedParts
    from vitreous.inference.predict import ImageList, Prediction

R = TypeVar("R")

ENDINGS = (".csv", ".jsonl", ".parquet")  # of `vitreous.evaluation.prediction_file.FORMATS`, which needs torch
OTHER_FILES = (".json", ".ndjson", ".tsv", ".txt", ".xls", ".xlsx", ".pq", ".feather")


@dataclass(frozen=True)
class PredictOptions(MergeOption, EngineOptions[R]):
    """Options of all predictions."""

    _: KW_ONLY
    top_k: Count = 5
    """COUNT: How many labels to give per image."""

    def predict_each(self, images: ImageInput | Sequence[ImageInput]) -> Iterator[Prediction]:
        from vitreous.inference.predict import ImageList

        named = ImageList(images)
        return self.predict_named(named, self.open_engine(len(named), merge=self.merge))

    def predict_named(self, named: ImageList, model: InferenceModel, *, embed: bool = False) -> Iterator[Prediction]:
        from vitreous.inference.memory_needs import check_inference_memory
        from vitreous.inference.predict import predict_images

        batch_size = min(self.batch_size or model.engine.batch_size, len(named))
        check_inference_memory(model.config, model.engine.preprocess, batch_size)
        progress, top = self.progress("predicting"), self.top_k
        return predict_images(model, named, len(named), top=top, batch_size=batch_size, embed=embed, progress=progress)


@dataclass(frozen=True)
class PredictToFiles(PredictOptions[R]):
    """Predictions that may go to files."""

    model: str | Path
    _: KW_ONLY
    embed: bool = False
    """With --out, add each image's representation."""
    part: WorkSlice | None = None
    """I/N: With --out, do the Ith of N slices of the work only: N processes, on one or several machines, may do theirs
    at once."""
    ray: str | None = None
    """auto|ADDRESS: With --out, do it with all workers of a Ray cluster: the one at this address; auto takes the one
    that Ray finds, or else this machine."""

    def predict_to_files(self, images: str | Path | Sequence[str | Path], out: str | Path) -> PredictedParts:
        """Into one file if the name ends as one does, else into files of a folder."""
        ending = Path(out).suffix.lower()
        if ending in OTHER_FILES:
            raise UserError(f"out {out}: predictions are written as .csv, .jsonl or .parquet; give it such a name.")
        return self._to_file(images, out) if ending in ENDINGS else self._to_folder(images, out)

    def _to_file(self, images: str | Path | Sequence[str | Path], out: str | Path) -> PredictedParts:
        from vitreous.data.loader import check_unreadable
        from vitreous.evaluation.prediction_file import check_prediction_file, predicted_columns, prediction_file
        from vitreous.inference.parts import PredictedParts
        from vitreous.inference.predict import ImageList

        for name in ("part", "ray"):
            if getattr(self, name) is not None:
                raise UserError(f"{name}: several processes write into a folder; give out the name of a folder.")
        file, named = check_prediction_file(out), ImageList(images)
        model = self.open_engine(len(named), merge=self.merge, classifier=not self.embed)
        unreadable: dict[str, str] = {}
        columns, top = predicted_columns(embed=self.embed), min(self.top_k, len(model.labels))
        with prediction_file(file, top, columns) as write:
            for one in self.predict_named(named, model, embed=self.embed):
                if one.error is not None:
                    unreadable[one.path] = one.error
                    check_unreadable(unreadable, len(named))
                write([one.to_json()])
        return PredictedParts(file, file.suffix[1:].lower(), 1, 0, len(named), unreadable, {model.computed_by: 1})

    def _to_folder(self, images: str | Path | Sequence[str | Path], out: str | Path) -> PredictedParts:
        from vitreous.data.opening import check_found, open_every_image
        from vitreous.inference.part_plan import ModelRequest, parse_slice, read_plan
        from vitreous.inference.parts import predict_to_folder
        from vitreous.inference.ray_cluster import open_cluster, require_ray

        self.check_device()
        if self.ray is not None:
            require_ray()
        work_slice = parse_slice(self.part) if self.part is not None else (1, 1)
        place = output_folder(out).absolute()  # workers may run in another folder
        opened = [open_every_image(each) for each in ([images] if isinstance(images, str | Path) else images)]
        sources = [source for found, _ in opened for source in found]
        check_found(sum(map(len, sources)), [note for _, notes in opened for note in notes])
        read_plan(place)  # refuses a folder of other contents before anything large is opened
        request = ModelRequest(
            str(Path(self.model).absolute() if Path(self.model).exists() else self.model),
            self.engine,
            self.precision,
            self.preprocess,
            self.merge,
            self.device,
            classifier=not self.embed,
        )
        if self.ray is not None:
            request.open()  # errors of the model come before waiting for a cluster
        address = None if self.ray == "auto" else self.ray
        with nullcontext() if self.ray is None else open_cluster(address) as cluster:
            if cluster is not None and cluster.gpus and self.device != "cpu" and read_plan(place) is None:
                request = request.preferring("torch", "fp32")
            return predict_to_folder(
                place,
                request,
                sources,
                top=self.top_k,
                embed=self.embed,
                work_slice=work_slice,
                batch_size=self.batch_size,
                cluster=cluster,
                progress=self.progress("predicting"),
            )

    def show(self, result: Any) -> None:
        if not isinstance(result, Iterable):
            show_files(result)
            return
        for one in result:
            if one.error is not None:
                print(f"vitreous: {printable(one.path)}: {one.error}", file=sys.stderr)
                continue
            first, *others = (f"{printable(best.label)} {best.score:.1%}" for best in one.top)
            print(f"{printable(one.path)}  {first}" + (f"  ({', '.join(others)})" if others else ""), flush=True)


def show_files(done: PredictedParts) -> None:
    unreadable = f", of which {len(done.unreadable):,} could not be read" if done.unreadable else ""
    reused = f" ({done.reused:,} were there already)" if done.reused else ""
    engines = ", ".join(f"{engine} ({counted(count, 'file')})" for engine, count in done.engines.items())
    by = f", computed by {engines if len(done.engines) > 1 else next(iter(done.engines))}" if done.engines else ""
    files = f"{counted(done.parts, f'{done.format} file')}{reused}" if done.out.is_dir() else f"one {done.format} file"
    print(f"{printable(str(done.out))}: {counted(done.images, 'image')}{unreadable}, in {files}{by}.")


@dataclass(frozen=True)
class Predict(PredictToFiles["ImageResults[Prediction] | PredictedParts"]):
    """Label images, one line per image.

    Without --out, predictions are printed; the exit status is 1 if an image could not be read.

    With --out FILE, they are written to that file. With --out FOLDER, they are written to files in it, part by part,
    and a command that was interrupted goes on where it was when it is repeated. An image that cannot be read gets a row
    that says why; more than 1 % of them, and more than one, are refused.
    """

    images: Sequence[str | Path]
    """IMAGE|FOLDER|LIST ...: Image files; folders, whose images are taken in the order of their paths; a .csv or .jsonl
    list with a path in each line; or any other data."""
    _: KW_ONLY
    out: str | Path | None = None
    """FILE|FOLDER: A file that ends in .csv, .jsonl or .parquet; or a folder for many of them, Parquet if pyarrow is
    installed, else JSON lines."""
    json_help: ClassVar[str] = (
        "Print one JSON object per line: path, prediction, probability, top and error; with --out, what was written."
    )

    @property
    def streams(self) -> bool:  # type: ignore[override]
        return self.out is None

    @property
    def resumes(self) -> bool:  # type: ignore[override]
        return self.out is not None and Path(self.out).suffix.lower() not in ENDINGS

    def run(self) -> ImageResults[Prediction] | PredictedParts:
        if self.out is not None:
            return self.predict_to_files(self.images, self.out)
        for name, given in {"embed": self.embed, "part": self.part is not None, "ray": self.ray is not None}.items():
            if given:
                raise UserError(f"{name}: only predictions in files have it; give out too, or leave {name} out.")
        return ImageResults(self.predict_each(self.images), lambda one: one.error is not None)

    def to_json(self, result: Any) -> Any:
        """One object per image; of files, what was written."""
        return (one.to_json() for one in result) if self.streams else result.to_json()

    def status(self, result: ImageResults[Prediction] | PredictedParts) -> int:
        """1 if an image whose prediction was to be printed could not be read."""
        return int(isinstance(result, ImageResults) and result.unreadable > 0)


@dataclass(frozen=True)
class PredictImages(PredictOptions["list[Prediction]"]):
    """One prediction for each image, in order: the likeliest labels, or why it could not be read."""

    images: str | Path | ImageInput | Sequence[str | Path | ImageInput]
    """IMAGE: One or several of these: files; folders, of which all images are taken in the order of their paths;
    shards; the bytes of files; Pillow images; arrays (H, W) or (H, W, C) and tensors (H, W) or (C, H, W), uint8."""

    def run(self) -> list[Prediction]:
        return list(self.predict_each(self.images))

    def show(self, result: list[Prediction]) -> None:
        """Nothing: the command is `Predict`."""


@dataclass(frozen=True)
class PredictMany(PredictToFiles["PredictedParts"]):
    """Write the predictions for all images into a file, or into files of a folder, one row per image, in their order.

    The files of a folder are Parquet if pyarrow is installed, else JSON lines. Each is complete or not there, and one
    that is there is not made again: repeat the call to go on after an interruption.
    """

    images: str | Path | Sequence[str | Path]
    """IMAGE|FOLDER: Image files, folders, or any other data; one or several."""
    out: str | Path
    """FILE|FOLDER: A file that ends in .csv, .jsonl or .parquet; or a folder, which is refused if it holds predictions
    of another model, of other images or with other settings."""

    def run(self) -> PredictedParts:
        return self.predict_to_files(self.images, self.out)


predict = verb(PredictImages, "predict")
predict_many = verb(PredictMany)
