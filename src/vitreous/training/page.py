"""`vitreous report`: one page about a run or a bundle."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from vitreous.arguments import checked
from vitreous.config.data import Preprocess
from vitreous.config.model import ModelConfig
from vitreous.data.decode import ImageError
from vitreous.data.loader import Loader
from vitreous.data.opening import choose_split, open_dataset, open_images
from vitreous.data.source import Data, Source, Split
from vitreous.data.view import Sample, image_and_view
from vitreous.distributed.meter import Cost
from vitreous.errors import MachineError, UserError
from vitreous.evaluation.classify import ClassifiedImage
from vitreous.explain.explanation import Explainer
from vitreous.explain.methods import can_explain_classes
from vitreous.explain.reconstruct import draw_reconstructions
from vitreous.explain.weight_plots import plot_weights
from vitreous.inference.engine import open_in_torch
from vitreous.inference.evaluation import evaluate_classifier
from vitreous.inference.opening import check_classifier, open_model
from vitreous.model.family import count_flops
from vitreous.objectives.mae import load_autoencoder
from vitreous.report.page import Content, Example, Run, SplitScores, TaughtImage, looks, page
from vitreous.report.pretraining import pretraining_page
from vitreous.storage.files import write_file, write_output
from vitreous.storage.overwrite import check_file
from vitreous.training.folder import METRICS, REPORT, REQUESTS, RESULT, RunConfig, folder_kind, read_config, records_of
from vitreous.training.request import FitRequest, PretrainRequest
from vitreous.training.result import FitResult, PretrainResult, read_result
from vitreous.training.start import hold_out, some_of
from vitreous.training.teaching.token_labels import EXAMPLES, read_examples
from vitreous.weights.bundle import CARD, Bundle

EACH = 6  # images of each kind on a page
ROWS = 4  # images that a masked autoencoder rebuilds on its page
WORK = 6e11  # floating-point operations that looking at them may take: some seconds on two cores
DRAWING = 2.5  # seconds that the rest of a page takes on two quiet cores: curves, tables, and images of the weights
NO_TIME_LEFT = (
    "The time that the training had was over, so none is shown; vitreous report writes the page again with some."
)
IMAGES_MISSING = "The images are no longer where they were, so none can be shown."


@checked
def write_report(
    model: str | Path | Bundle,
    *,
    data: str | Path | Data | None = None,
    split: Split | None = None,
    out: str | Path | None = None,
    preprocess: Preprocess | str | None = None,
    progress: Callable[[int, int], None] | None = None,
    seconds: float | None = None,
) -> Path:
    """Write a page about a model and return its path.

    model: a run, whose training is then told; a bundle; or anything else that `open_weights` takes.
    data: measure it on these; if None, a run's own metrics are shown, and of a bundle what its weights say.
    out: the file; if None, report.html in a run's folder, or NAME-report.html here. A page of ours is replaced, any
        other file is not.
    seconds: about how long it may take: then fewer images are explained; None for as long as it takes.
    """
    if split is not None and data is None:
        raise UserError(f"split={split!r}: a split of data to measure on; give data too, or leave split out.")
    bundle = open_model(model, preprocess)
    finished = None if isinstance(model, Bundle) else read_run(Path(model))
    place = str(bundle.path or "BUNDLE") if isinstance(model, Bundle) else str(model)
    if finished is not None and data is None and preprocess is not None:
        raise UserError(
            "preprocess: the page shows what the training measured, with its own preprocessing; give data to measure "
            "anew, or leave preprocess out."
        )
    where = Path(place).resolve()
    name = where.stem if where.is_file() else where.name
    default = Path(place) / REPORT if finished is not None else Path(f"{name}-report.html")
    if finished is not None and out is None:  # in a run folder, report.html is the run's own, marked or not
        path, write = default, write_file
    else:
        path, write = check_file(default if out is None else out), write_output
    if finished is not None and data is None:
        return write(path, _page(name, place, bundle, finished, seconds))
    if finished is not None and isinstance(finished.result, PretrainResult):
        raise UserError(
            f"{place}: a training without labels, so there is no classifier to measure; leave the data out, or see "
            f"what its features are worth: vitreous probe {place} {data}."
        )
    measured = Measured() if data is None else _measure(bundle, data, split, progress)
    run = None if finished is None else told(place, finished)
    source = None if data is None or isinstance(data, Data) else str(data)
    content = _content(name, place, bundle, run, source, measured, Timeout(seconds))
    examples = () if finished is None else _token_label_examples(Path(place), finished.config)
    return write(path, page(replace(content, taught=examples)))


def write_run_page(
    folder: Path, bundle: Bundle, config: RunConfig, result: FitResult | PretrainResult, seconds: float | None
) -> None:
    """Write the page of a training that has just ended, in about so many seconds."""
    content = _page(folder.resolve().name, str(folder), bundle, Finished(config, result, records_of(folder)), seconds)
    write_file(folder / REPORT, content)


def restore_run_page(folder: Path) -> str:
    """Write the page of a finished training again if it is lost; what there is to say about it."""
    if (folder / REPORT).exists():
        return f"{folder} is finished; nothing to do."
    try:
        write_report(folder)
    except (UserError, MachineError) as error:  # what was learned is there all the same
        return f"{folder} is finished; its {REPORT} is missing and cannot be written: {error}"
    return f"{folder} is finished; only its {REPORT} was missing, and is written again."


def _page(name: str, place: str, bundle: Bundle, finished: Finished, seconds: float | None) -> str:
    """The page of a run, with what the training itself measured."""
    if isinstance(finished.result, PretrainResult):
        return pretraining_page(name, told(place, finished), _rebuilt(Path(place), bundle, finished.config))
    content = _content(name, place, bundle, told(place, finished), None, _recall(finished), Timeout(seconds))
    return page(replace(content, taught=_token_label_examples(Path(place), finished.config)))


class Timeout:
    """Whether there is still time to look at images for a page that may take so many seconds."""

    def __init__(self, seconds: float | None) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds - DRAWING

    def over(self) -> bool:
        """The rest is needed for drawing the page."""
        return self._until is not None and time.monotonic() > self._until


def _content(
    name: str, place: str, bundle: Bundle, run: Run | None, source: str | None, measured: Measured, timeout: Timeout
) -> Content:
    """All that the page of a classifier shows; source: the data that it was measured on, if a person named them."""
    splits = [with_examples(one, bundle, measured.data, timeout) for one in measured.splits[:1]]
    looked_at = None if timeout.over() or measured.data is None else choose_split(measured.data, None)[1]
    return Content(
        name=name,
        place=place,
        bundle=bundle,
        run=run,
        data=source,
        splits=(*splits, *measured.splits[1:]),
        spent=_spent(bundle) if run is None else run.spent,
        looks=looks(plot_weights(bundle, looked_at, 2 * _how_many(bundle.model.config)).plots()),
        card=_card(bundle) if run is None else None,
        left_out=measured.left_out,
    )


class Measured(NamedTuple):
    """How well a model does, and the images that it was measured on, where they are."""

    data: Data | None = None
    splits: tuple[SplitScores, ...] = ()
    left_out: tuple[str, ...] = ()


def _measure(
    bundle: Bundle, data: str | Path | Data, split: Split | None, progress: Callable[[int, int], None] | None
) -> Measured:
    check_classifier(bundle)
    opened = open_dataset(data)
    told = progress or (lambda done, total: None)
    # in fp32: the page is about the model, not about what int8 makes of it
    name, source = choose_split(opened, split)
    found = evaluate_classifier(open_in_torch(bundle), name, source, progress=told)
    left_out = tuple(f"{image}: {why}" for image, why in found.unreadable.items())
    return Measured(opened, (SplitScores(found.split, found.result),), left_out)


def _recall(finished: Finished) -> Measured:
    return Measured(_data_of(finished.config), tuple(_measured(finished)), finished.result.remarks)


class Finished(NamedTuple):
    """A training that has ended, as its folder keeps it."""

    config: RunConfig
    result: FitResult | PretrainResult
    records: list[dict[str, float]]


def read_run(folder: Path) -> Finished | None:
    """What a finished training left in its folder; None where the folder is no run of a single one."""
    if not (folder / RESULT).exists():
        if (folder / METRICS).exists():
            raise UserError(f"{folder}: the training is not finished; repeat its command to finish it.")
        return None
    if folder_kind(folder) not in (None, *REQUESTS):  # a study, whose bundle is a model like any other
        return None
    try:
        config = read_config(folder)
        if config is None:
            raise ValueError("there is no config.json")
        result, records = read_result(folder), records_of(folder)
    except UserError as error:
        reason = str(error).rstrip(".")
        raise UserError(f"{reason}; or give the bundle alone: {folder / 'bundle'}.") from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder}: config.json, result.json or metrics.jsonl is missing or damaged ({error}); restore it from a "
            f"copy, or give the bundle alone: {folder / 'bundle'}."
        ) from None
    return Finished(config, result, records)


def told(place: str, finished: Finished) -> Run:
    config, result, records = finished
    request = config.request
    fitted = result if isinstance(result, FitResult) else None
    probe = None if fitted is None else fitted.probe
    return Run(
        place=place,
        data=request.learned_from if isinstance(request, FitRequest) else str(request.data),
        start=str(request.weights) if isinstance(request, FitRequest) and request.weights is not None else None,
        teacher=request.teacher if isinstance(request, FitRequest) else None,
        way=request.method if isinstance(request, PretrainRequest) else request.recipe,
        training=config.training,
        images=result.images,
        classes=len(config.classes),
        steps=result.steps,
        planned=config.steps,
        best_step=None if fitted is None else fitted.best_step,
        frozen=None if probe is None or probe.accuracy is None else (probe.accuracy, probe.seconds),
        frozen_images=None if probe is None else probe.images,
        spent=result.spent,
        records=records,
        alarms=result.alarms if isinstance(result, PretrainResult) else (),
        remarks=result.remarks,
    )


def _measured(finished: Finished) -> list[SplitScores]:
    """The splits that the training measured, test before validation, which chose the weights."""
    result = finished.result
    assert isinstance(result, FitResult)
    found = [] if result.test is None else [SplitScores("test", result.test, of=result.subset_of.get("test"))]
    if (validation := result.validation) is not None:
        calibrated = finished.config.training.probe
        of = result.subset_of.get("validation")
        found.append(SplitScores("validation", validation, chose=True, calibrated=calibrated, of=of))
    return found


def _spent(bundle: Bundle) -> Cost | None:
    spent = bundle.info.get("spent")
    return Cost(**spent) if isinstance(spent, dict) else None


def _data_of(config: RunConfig) -> Data | None:
    try:
        return open_dataset(config.request.data)
    except UserError:
        return None


def _token_label_examples(folder: Path, config: RunConfig) -> tuple[TaughtImage, ...]:
    """Training images with the token labels that they had, where images and labels still are."""
    shown = read_examples(folder) if (folder / EXAMPLES).exists() else ()
    data = _data_of(config) if shown else None
    if data is None:
        return ()
    places, found = _find(data, {one.image for one in shown}), []
    for one in shown:
        if one.image not in places:
            continue
        source, index = places[one.image]
        try:
            image, label = source.read(index), source.classes[int(source.labels[index])]
            labels = [[config.classes[number] for number in row] for row in one.classes]
        except (ImageError, IndexError):  # damaged since
            continue
        found.append(TaughtImage(one.image, label, image, labels, one.shares))
    return tuple(found)


def _rebuilt(folder: Path, bundle: Bundle, config: RunConfig) -> Image.Image | None:
    """What a masked autoencoder makes of some images that were set aside; None without one, or without them."""
    if not (folder / "decoder").is_dir():
        return None
    seed = config.training.seed
    try:
        opened = open_images(config.request.data)
        config.check_data(opened, folder)
        held = hold_out(opened, seed).splits["val"]
        loader = Loader(some_of(held, ROWS, seed), bundle.preprocess, batch_size=ROWS, unreadable_limit=1.0)
        batch = next(iter(loader.batches()))
    except UserError:  # the images are no longer what or where they were: others may have been learned from
        return None
    return draw_reconstructions(load_autoencoder(folder / "decoder", bundle.model), batch, bundle.preprocess)


def with_examples(scored: SplitScores, bundle: Bundle, data: Data | None, timeout: Timeout) -> SplitScores:
    """The split with images that the model was surest of, and what it looked at in them."""
    each = _how_many(bundle.model.config)
    wrong, right = scored.result.surest_wrong[:each], scored.result.surest_right[:each]
    places = _find(data, {prediction.image for prediction in (*wrong, *right)}) if data is not None else {}
    if not places:
        return replace(scored, without=IMAGES_MISSING)
    found: dict[ClassifiedImage, Example] = {}
    for prediction in chain.from_iterable(zip_longest(wrong, right)):  # in turns, so that a timeout leaves some of both
        if prediction is None or prediction.image not in places:
            continue
        if timeout.over():
            break
        if (example := _example(bundle, prediction, *places[prediction.image])) is not None:
            found[prediction] = example
    if not found and timeout.over():
        return replace(scored, without=NO_TIME_LEFT)
    shown, known = ([found[prediction] for prediction in some if prediction in found] for some in (wrong, right))
    return replace(scored, wrong=tuple(shown), right=tuple(known))


def _how_many(config: ModelConfig) -> int:
    return max(2, min(EACH, int(WORK / 2 / count_flops(config))))


def _find(data: Data, names: set[str]) -> dict[str, tuple[Source, int]]:
    """Where images of these names are; validation images may have been training ones."""
    order: tuple[Split, ...] = ("test", "val", "train")
    found: dict[str, tuple[Source, int]] = {}
    for source in (data.splits[split] for split in order if split in data.splits):
        if len(found) == len(names):
            break
        for index in range(len(source)):
            if (name := source.name(index)) in names:
                found.setdefault(name, (source, index))
    return found


def _example(bundle: Bundle, prediction: ClassifiedImage, source: Source, index: int) -> Example | None:
    """The image and what spoke for the prediction, where it can be told; None if it was damaged since it was judged."""
    try:
        sample = Sample(source, index)
        whole = image_and_view(sample, bundle.preprocess).image
        overlay = Explainer(bundle).explain(sample).overlay() if can_explain_classes(bundle.model) else None
    except ImageError:
        return None
    return Example(prediction, whole, overlay)


def _card(bundle: Bundle) -> str | None:
    path = None if bundle.path is None else bundle.path / CARD
    return path.read_text(encoding="utf-8") if path is not None and path.is_file() else None
