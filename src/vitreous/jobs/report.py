"""`vitreous report`: one page about a run or a bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from vitreous.config.data import Preprocess
from vitreous.config.model import ModelConfig
from vitreous.data.decode import PictureError
from vitreous.data.loader import Loader
from vitreous.data.source import Data, Source, Split
from vitreous.errors import UserError
from vitreous.explain.methods import can_explain_classes
from vitreous.explain.reconstruct import draw_reconstructions
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.explain import explain
from vitreous.jobs.explain_weights import explain_weights
from vitreous.jobs.opening import open_dataset, open_model, open_pictures
from vitreous.jobs.run import check_data
from vitreous.jobs.start import set_aside, some_of
from vitreous.model.family import count_flops
from vitreous.model.network import require
from vitreous.model.vit import ViT
from vitreous.objectives.mae import load_autoencoder
from vitreous.report.content import Content, Example, Part, Run
from vitreous.report.page import looks, page
from vitreous.report.pretraining import pretraining_page
from vitreous.weights.bundle import CARD, Bundle
from vitreous.weights.files import readable_errors

EACH = 6
"""Pictures of each kind on a page."""
ROWS = 4
"""Pictures that a masked autoencoder rebuilds on its page."""
WORK = 6e11
"""Floating-point operations that looking at them may take: some seconds on two cores."""
WRITING = 2.0
"""Seconds that a page takes besides, most of them for drawing."""
GONE = "The pictures are no longer where they were, so none can be shown."


def write_report(
    model: str | Path | Bundle,
    *,
    data: str | Path | Data | None = None,
    split: Split | None = None,
    out: str | Path | None = None,
    preprocess: Preprocess | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a page about a model and return its path.

    model: a run, whose training is then told; a bundle; or anything else that `open_weights` takes.
    data: measure it on these; if None, a run's own figures are shown, and of a bundle what its weights say.
    out: the file; if None, report.html in a run's folder, or NAME-report.html here.
    """
    bundle = open_model(model, preprocess)
    run = None if isinstance(model, Bundle) else read_run(Path(model))
    place = str(bundle.path or "BUNDLE") if isinstance(model, Bundle) else str(model)
    where = Path(place).resolve()
    name = where.stem if where.is_file() else where.name
    default = Path(place) / "report.html" if run is not None else Path(f"{name}-report.html")
    path = Path(out) if out is not None else default
    if run is not None and "method" in run.config:  # by which it learned without labels
        if data is not None:
            raise UserError(
                f"{place}: a training without labels, so there is no classifier to measure; leave --data out, or see "
                f"what its features are worth: vitreous probe {place} {data}."
            )
        return _write(path, pretraining_page(name, run, _rebuilt(Path(place), bundle, run)))
    left_out: tuple[str, ...] = ()
    if data is not None:
        opened: Data | None = open_dataset(data)
        assert opened is not None
        found = evaluate(bundle, opened, split=split, progress=progress)
        parts = [Part(found.split, found.result.to_json())]
        left_out = tuple(f"{picture}: {why}" for picture, why in found.unreadable.items())
    elif run is not None:
        opened, parts, left_out = _data_of(run), _measured(run, place), tuple(run.result["remarks"])
    else:
        opened, parts = None, []
    content = Content(
        name=name,
        place=place,
        bundle=bundle,
        run=run,
        data=None if data is None or isinstance(data, Data) else str(data),
        parts=tuple(part if i else with_examples(part, bundle, opened) for i, part in enumerate(parts)),
        looks=looks(explain_weights(bundle, opened, count=2 * _how_many(bundle.model.config)).figures()),
        card=_card(bundle) if run is None else None,
        left_out=left_out,
    )
    return _write(path, page(content))


def restore_report(run: Path) -> str:
    """What there is to say of a finished run; its page is written again if it is lost."""
    if (run / "report.html").exists():
        return f"{run} is finished; nothing to do."
    try:
        write_report(run)
    except UserError as error:  # what was learned is there all the same
        return f"{run} is finished; its report.html is missing and cannot be written: {error}"
    return f"{run} is finished; only its report.html was missing, and is written again."


def read_run(folder: Path) -> Run | None:
    """What a finished training left in its folder; None where the folder is no run."""
    paths = [folder / name for name in ("config.json", "result.json", "metrics.jsonl")]
    if not paths[1].exists():
        if paths[2].exists():
            raise UserError(f"{folder}: the training is not finished; repeat its command to finish it.")
        return None
    try:
        config, result = (json.loads(path.read_text(encoding="utf-8")) for path in paths[:2])
        records = [json.loads(line) for line in paths[2].read_text(encoding="utf-8").splitlines()]
        if not {"run", "remarks"} <= result.keys():
            raise ValueError("result.json says nothing")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder}: config.json, result.json or metrics.jsonl is missing or damaged ({error}); restore it from a "
            f"copy, or give the bundle alone: {folder / 'bundle'}."
        ) from None
    return Run(config, result, records)


def _measured(run: Run, place: str) -> list[Part]:
    """The parts that the training measured, test before validation."""
    found = [Part(name, run.result[name]) for name in ("test", "validation") if run.result[name]]
    if any("bins" not in part.figures for part in found):
        raise UserError(f"{place}: measured by an older vitreous; say on what to measure it again: --data DATA.")
    return found


def _data_of(run: Run) -> Data | None:
    """The data of a training, where they still are."""
    try:
        return open_dataset(run.config["request"]["data"])
    except UserError:
        return None


def _rebuilt(folder: Path, bundle: Bundle, run: Run) -> Image.Image | None:
    """What a masked autoencoder makes of some pictures that were set aside; None without one, or without them."""
    if not (folder / "decoder").is_dir():
        return None
    seed = run.config["training"]["seed"]
    try:
        opened = open_pictures(run.config["request"]["data"])
        check_data(run.config, opened, folder)
        held = set_aside(opened, seed).splits["val"]
        loader = Loader(some_of(held, ROWS, seed), bundle.preprocess, batch_size=ROWS, unreadable_limit=1.0)
        batch = next(iter(loader.batches()))
    except UserError:  # the pictures are no longer what or where they were: others may have been learned from
        return None
    model = require(bundle.model, ViT, str(folder))
    return draw_reconstructions(load_autoencoder(folder / "decoder", model), batch, bundle.preprocess)


def with_examples(part: Part, bundle: Bundle, data: Data | None) -> Part:
    """The part with pictures that the model was surest of, and what it looked at in them."""
    each = _how_many(bundle.model.config)
    wrong, right = (part.figures[kind][:each] for kind in ("surest_wrong", "surest_right"))
    places = _find(data, {answer["picture"] for answer in (*wrong, *right)}) if data is not None else {}
    if not places:
        return Part(part.name, part.figures, without=GONE)

    def look(answers: list[dict[str, Any]]) -> tuple[Example, ...]:
        found = (
            _example(bundle, answer, *places[answer["picture"]]) for answer in answers if answer["picture"] in places
        )
        return tuple(example for example in found if example is not None)

    return Part(part.name, part.figures, look(wrong), look(right))


def _how_many(config: ModelConfig) -> int:
    return max(2, min(EACH, int(WORK / 2 / count_flops(config))))


def _find(data: Data, names: set[str]) -> dict[str, tuple[Source, int]]:
    """Where pictures of these names are; validation pictures may have been training ones."""
    order: tuple[Split, ...] = ("test", "val", "train")
    found: dict[str, tuple[Source, int]] = {}
    for source in (data.splits[part] for part in order if part in data.splits):
        if len(found) == len(names):
            break
        for index in range(len(source)):
            if (name := source.name(index)) in names:
                found.setdefault(name, (source, index))
    return found


def _example(bundle: Bundle, answer: dict[str, Any], source: Source, index: int) -> Example | None:
    """The picture and what spoke for the answer, where it can be told; None if it was damaged since it was judged."""
    p = bundle.preprocess
    try:
        picture = source.read(index, channels=p.channels, at_least=2 * max(p.resized))
    except PictureError:
        return None
    overlay = explain(bundle, picture).overlay() if can_explain_classes(bundle.model) else None
    return Example(answer, picture, overlay)


def _card(bundle: Bundle) -> str | None:
    path = None if bundle.path is None else bundle.path / CARD
    return path.read_text(encoding="utf-8") if path is not None and path.is_file() else None


def _write(path: Path, text: str) -> Path:
    with readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.new")  # so that a page that is there is a whole one
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    return path
