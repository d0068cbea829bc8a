"""`vitreous report`: one page about a run or a bundle."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from vitreous.arguments import checked
from vitreous.config.data import Preprocess
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
from vitreous.explain.overlay import draw_reconstructions
from vitreous.explain.request import ExplanationRequest
from vitreous.inference.engine import open_in_torch
from vitreous.inference.evaluation import evaluate_classifier
from vitreous.inference.opening import check_classifier, open_model
from vitreous.model.family import count_flops
from vitreous.objectives.mae import load_autoencoder
from vitreous.report.page import Content, Example, Run, SplitScores, TokenLabelImage, page, weight_figures
from vitreous.report.pretraining import AttentionExample, pretraining_page
from vitreous.report.weight_plots import plot_weights
from vitreous.storage.files import write_file, write_output
from vitreous.storage.overwrite import check_file
from vitreous.training.folder import (
    METRICS,
    REPORT,
    REQUESTS,
    RESULT,
    RunConfig,
    folder_kind,
    read_config,
    read_metrics,
)
from vitreous.training.request import FitRequest, PretrainRequest
from vitreous.training.result import FitResult, PretrainResult, guessing_advice, read_result
from vitreous.training.start import draw_images, hold_out
from vitreous.training.teaching.token_labels import EXAMPLES, read_examples
from vitreous.weights.bundle import CARD, Bundle

MAX_EXAMPLES = 6  # images of each kind on a page
MAX_UNSEEN_EXAMPLES = 4  # images that a page shows of a training without labels
EXPLANATION_FLOPS = 6e11  # floating-point operations that looking at them may take: some seconds on two cores
RENDER_SECONDS = 2.5  # that the rest of a page takes on two quiet cores: curves, tables, and images of the weights
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
    opened: Data | None = None
    splits: tuple[SplitScores, ...] = ()
    left_out: tuple[str, ...] = ()
    if data is not None:
        check_classifier(bundle)
        opened = open_dataset(data)
        # in fp32: the page is about the model, not about what int8 makes of it
        engine, told = open_in_torch(bundle), progress or (lambda done, total: None)
        found = evaluate_classifier(engine, *choose_split(opened, split), progress=told)
        splits = (SplitScores(found.split, found.result, chose=found.optimistic, seen=found.seen),)
        left_out = tuple(f"{image}: {why}" for image, why in found.unreadable.items())
    source = None if data is None or isinstance(data, Data) else str(data)
    content = _content(name, place, bundle, finished, splits, opened, seconds)
    return write(path, page(replace(content, data=source, left_out=left_out)))


def write_run_page(
    folder: Path, bundle: Bundle, config: RunConfig, result: FitResult | PretrainResult, seconds: float | None
) -> None:
    content = _page(folder.resolve().name, str(folder), bundle, Finished(config, result, read_metrics(folder)), seconds)
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
    config, result, _ = finished
    if isinstance(result, PretrainResult):
        rebuilt = _reconstruct_examples(Path(place), bundle, config)
        attention = _attention_examples(Path(place), bundle, config)
        return pretraining_page(name, _run(place, finished), rebuilt, attention)
    # test before validation, which chose the weights
    splits = [] if result.test is None else [SplitScores("test", result.test, of=result.subset_of.get("test"))]
    if (validation := result.validation) is not None:
        of, calibrated = result.subset_of.get("validation"), config.training.probe
        splits.append(SplitScores("validation", validation, chose=True, calibrated=calibrated, of=of))
    content = _content(name, place, bundle, finished, tuple(splits), _data_of(config), seconds)
    assert isinstance(config.request, FitRequest)
    advice = guessing_advice(result, config.request)
    return page(replace(content, left_out=result.remarks, advice=advice and advice.replace("`", "")))


def _content(
    name: str,
    place: str,
    bundle: Bundle,
    finished: Finished | None,
    splits: tuple[SplitScores, ...],
    data: Data | None,
    seconds: float | None,
) -> Content:
    """All that the page of a classifier shows. data: what the splits were measured on, where the images still are.
    seconds: about how long it may take; then no more images are looked at, and the rest is needed for drawing."""
    until = math.inf if seconds is None else time.monotonic() + seconds - RENDER_SECONDS
    if splits:
        splits = (_with_examples(splits[0], bundle, data, until), *splits[1:])
    looked_at = None if data is None or time.monotonic() > until else choose_split(data, None)[1]
    run = None if finished is None else _run(place, finished)
    spent = bundle.info.get("spent") if run is None else None
    card = None if bundle.path is None or run is not None else bundle.path / CARD
    return Content(
        name=name,
        place=place,
        bundle=bundle,
        run=run,
        splits=splits,
        spent=Cost(**spent) if isinstance(spent, dict) else None if run is None else run.spent,
        weight_figures=weight_figures(plot_weights(bundle, looked_at, 2 * _examples_per_kind(bundle)).plots()),
        token_labels=() if finished is None else _token_label_examples(Path(place), finished.config),
        card=card.read_text(encoding="utf-8") if card is not None and card.is_file() else None,
    )


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
        result, records = read_result(folder), read_metrics(folder)
    except UserError as error:
        reason = str(error).rstrip(".")
        raise UserError(f"{reason}; or give the bundle alone: {folder / 'bundle'}.") from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder}: config.json, result.json or metrics.jsonl is missing or damaged ({error}); restore it from a "
            f"copy, or give the bundle alone: {folder / 'bundle'}."
        ) from None
    return Finished(config, result, records)


def _run(place: str, finished: Finished) -> Run:
    config, result, records = finished
    request, fit = config.request, config.request if isinstance(config.request, FitRequest) else None
    fitted = result if isinstance(result, FitResult) else None
    probe = None if fitted is None else fitted.probe
    return Run(
        place=place,
        data=str(request.data) if fit is None else fit.data_description,
        start=None if fitted is None else fitted.start,
        teacher=None if fit is None else fit.teacher,
        method=request.method if isinstance(request, PretrainRequest) else request.recipe,
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


def _data_of(config: RunConfig) -> Data | None:
    try:
        return open_dataset(config.request.data)
    except UserError:
        return None


def _token_label_examples(folder: Path, config: RunConfig) -> tuple[TokenLabelImage, ...]:
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
        found.append(TokenLabelImage(one.image, label, image, labels, one.shares))
    return tuple(found)


def _unseen_examples(folder: Path, config: RunConfig) -> Source | None:
    """Some images that a training without labels set aside; None where they are no longer what or where they were."""
    try:
        opened = open_images(config.request.data)
        config.check_data(opened, folder)
    except UserError:  # others may have been learned from
        return None
    seed = config.training.seed
    return draw_images(hold_out(opened, seed).splits["val"], MAX_UNSEEN_EXAMPLES, seed)


def _reconstruct_examples(folder: Path, bundle: Bundle, config: RunConfig) -> Image.Image | None:
    """What a masked autoencoder makes of some images that were set aside; None without one, or without them."""
    if not (folder / "decoder").is_dir() or (images := _unseen_examples(folder, config)) is None:
        return None
    loader = Loader(images, bundle.preprocess, batch_size=MAX_UNSEEN_EXAMPLES, unreadable_limit=1.0)
    try:
        batch = next(iter(loader.batches()))
    except UserError:
        return None
    return draw_reconstructions(load_autoencoder(folder / "decoder", bundle.model), batch, bundle.preprocess)


def _attention_examples(folder: Path, bundle: Bundle, config: RunConfig) -> list[AttentionExample]:
    """What the heads of a model that learned by DINO attend to in some images that were set aside."""
    if config.training.objective.kind != "dino" or (images := _unseen_examples(folder, config)) is None:
        return []
    explainer, found = Explainer(bundle, ExplanationRequest(method="attention", layer=-1, head="all")), []
    for index in range(len(images)):
        with suppress(ImageError):  # damaged since
            seen = explainer.explain(Sample(images, index))
            found.append(AttentionExample(seen.image, seen.panels(), seen.note))
    return found


def _with_examples(scored: SplitScores, bundle: Bundle, data: Data | None, until: float) -> SplitScores:
    """The split with images that the model was surest of, and what it looked at in them."""
    each = _examples_per_kind(bundle)
    wrong, right = scored.result.surest_wrong[:each], scored.result.surest_right[:each]
    places = _find(data, {prediction.image for prediction in (*wrong, *right)}) if data is not None else {}
    if not places:
        return replace(scored, without=IMAGES_MISSING)
    found: dict[ClassifiedImage, Example] = {}
    for prediction in chain.from_iterable(zip_longest(wrong, right)):  # in turns, so that a timeout leaves some of both
        if prediction is None or prediction.image not in places:
            continue
        if time.monotonic() > until:
            break
        with suppress(ImageError):  # it was damaged since it was judged
            sample = Sample(*places[prediction.image])
            whole = image_and_view(sample, bundle.preprocess).image
            overlay = Explainer(bundle).explain(sample).overlay() if can_explain_classes(bundle.model) else None
            found[prediction] = Example(prediction, whole, overlay)
    if not found and time.monotonic() > until:
        return replace(scored, without=NO_TIME_LEFT)
    shown, known = ([found[prediction] for prediction in some if prediction in found] for some in (wrong, right))
    return replace(scored, wrong=tuple(shown), right=tuple(known))


def _examples_per_kind(bundle: Bundle) -> int:
    return max(2, min(MAX_EXAMPLES, int(EXPLANATION_FLOPS / 2 / count_flops(bundle.model.config))))


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
