"""`transfer.html`: how well a model does on many tasks, beside the paper's table, and what that cost."""

from __future__ import annotations

from vitreous.report.html import render
from vitreous.report.numbers import duration
from vitreous.studies.requests import Protocol
from vitreous.studies.transfer.paper_table import BENCHMARKS, DAYS, EXAFLOPS, TABLE_2, core_days
from vitreous.studies.transfer.result import GROUPS, SOME_OF_VTAB, VTAB, TaskScore, TransferResult

DESCRIPTIONS: dict[Protocol, str] = {
    "vtab-1k": "fine-tuned on 1,000 images of each task",
    "full": "fine-tuned on all training images",
    "linear": "a linear classifier on frozen features of all training images",
    "knn": "the weighted vote of the nearest training images by frozen features, of 20 where there are as many",
    "fewshot-5": "least squares on frozen features of 5 images per class, the mean of 5 draws",
}


def transfer_page(found: TransferResult) -> str:
    """The whole page as text."""
    of_vtab = [task for task in found.tasks if task.group is not None and found.score(task.name, "vtab-1k")]
    others = [task.name for task in of_vtab if not task.own_draw]
    known = found.model.training_flops
    own_days = "" if known is None else f"{core_days(known).value:.2g}"
    paper = [
        [one.model, f"{one.core_days:,.0f}", *(one.accuracies.get(key, "") for key in BENCHMARKS)] for one in TABLE_2
    ]
    return render(
        "transfer.html",
        found=found,
        missing=sum(one.protocol is None for one in found.absent),
        measured=len({score.task for score in found.scores}),
        accuracies=_accuracies(found),
        means=_means(found),
        drawn=None if not others else "" if len(others) == len(of_vtab) else f" of {', '.join(others)}",
        protocols={protocol: DESCRIPTIONS[protocol] for protocol in found.protocols},
        benchmarks=list(BENCHMARKS.values()),
        published=paper
        + [
            [f"this model, {protocol}", own_days, *(_beside_paper(found, key, protocol) for key in BENCHMARKS)]
            for protocol in found.protocols
        ],
        exaflops=f"{EXAFLOPS:,} exaFLOPs (table 6) in {DAYS:,} core-days (table 2) are "
        f"{EXAFLOPS * 1e18 / (DAYS * 86400) / 1e12:.1f} teraflops",
        own_core_days=None if known is None else str(core_days(known)),
        scores=[
            [
                one.task,
                one.protocol,
                _interval_text(one.accuracy, one.interval),
                one.tested,
                f"{one.trained_on:,}"
                + ("" if one.trained_on == one.trained_of else f" of {one.trained_of:,}, equally many of each class"),
                _settings(one),
                one.engine,
                duration(one.seconds),
            ]
            for one in found.scores
        ],
        tasks=[
            [
                task.name,
                task.place,
                f"{task.classes:,}",
                ", ".join(f"{count:,} {split}" for split, count in task.splits.items()),
                {True: "yes", False: "no", None: ""}[task.as_published],
                ", ".join(f"{split} {digest}" for split, digest in task.digests.items()),
            ]
            for task in found.tasks
        ],
        absent=[[one.task, one.group or "", one.protocol or "all", one.reason] for one in found.absent],
        remarks=[
            *found.remarks,
            *(f"{task.name}: {remark}" for task in found.tasks for remark in task.remarks),
            *(f"{score.task}, {score.protocol}: {one}" for score in found.scores for one in score.remarks),
        ],
    )


def _accuracies(found: TransferResult) -> list[list[str]]:
    """A row for each task, VTAB's groups first, each together."""
    places = {group: number for number, group in enumerate(GROUPS)}
    rows = []
    for task in sorted(found.tasks, key=lambda one: places[one.group] if one.group else len(places)):
        scores = (found.score(task.name, protocol) for protocol in found.protocols)
        cells = ("" if one is None else _interval_text(one.accuracy, one.interval) for one in scores)
        rows.append([task.name, task.group or "", *cells])
    return rows


def _means(found: TransferResult) -> list[list[str]]:
    texts = {
        (one.what, one.protocol): f"{_interval_text(one.value, one.interval)}, {one.tasks} of {one.of}"
        for one in found.means
    }
    there = {what for what, _ in texts}
    names = [name for name in (*GROUPS, VTAB, SOME_OF_VTAB, "all") if name in there]
    return [[name, *(texts.get((name, protocol), "") for protocol in found.protocols)] for name in names]


def _interval_text(value: float, interval: tuple[float, float]) -> str:
    return f"{100 * value:.1f} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def _beside_paper(found: TransferResult, benchmark: str, protocol: Protocol) -> str:
    """This model's figure for a column of the paper's, and in what its images are others than the paper's."""
    if benchmark == "vtab":
        vtab = next((mean for mean in found.means if (mean.protocol, mean.what) == (protocol, VTAB)), None)
        return "" if vtab is None else _interval_text(vtab.value, vtab.interval)
    task = next((task for task in found.tasks if task.dataset == benchmark), None)
    score = None if task is None else found.score(task.name, protocol)
    if task is None or score is None:
        return ""
    shown = _interval_text(score.accuracy, score.interval)
    if found.is_whole(score):
        return shown
    published = task.published or {}
    of = published.get("test", published.get("val", score.of))
    return f"{shown}; " + (f"{score.n:,} of {of:,}" if score.n + score.unreadable < of else "other images")


def _settings(score: TaskScore) -> str:
    s = score.settings
    if score.protocol == "linear":
        return f"weight decay {s['weight_decay']:g}"
    if score.protocol == "knn":
        return f"k = {s['k']:g}, temperature {s['temperature']:g}"
    if score.protocol == "fewshot-5":
        return f"mean of {s['draws']} draws"
    rate = s["optimizer.learning_rate"]
    shown = f"{s['optimizer.name']} {rate:g}, batch {s['batch_size']}, {s['steps']:,} steps"
    if score.trials:
        tried = ", ".join(f"{t.settings['optimizer.learning_rate']:g}: {t.accuracy:.1%}" for t in score.trials)
        shown += f"; of the {score.trials[0].n} validation images by learning rate: {tried}"
    return shown
