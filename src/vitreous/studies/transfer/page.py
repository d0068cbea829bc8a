"""`transfer.html`: how well a model does on many tasks, beside the paper's table, and what that cost."""

from __future__ import annotations

from itertools import chain, islice, repeat

from vitreous.report.html import render
from vitreous.report.numbers import duration
from vitreous.studies.requests import Protocol
from vitreous.studies.transfer.result import (
    GROUPS,
    SOME_OF_VTAB,
    VIT_H_CORE_DAYS,
    VIT_H_EXAFLOPS,
    VTAB,
    TaskScore,
    TransferResult,
    core_days,
)

DESCRIPTIONS: dict[Protocol, str] = {
    "vtab-1k": "fine-tuned on 1,000 images of each task",
    "full": "fine-tuned on all training images",
    "linear": "a linear classifier on frozen features of all training images",
    "knn": "the weighted vote of the nearest training images by frozen features, of 20 where there are as many",
    "fewshot-5": "least squares on frozen features of 5 images per class, the mean of 5 draws",
}
BENCHMARKS = {
    "imagenet": "ImageNet",
    "imagenet-real": "ReaL",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "pets": "Pets",
    "flowers102": "Flowers-102",
    "vtab": "VTAB, 19 tasks",
}
"""The table's rows, by our names of the data."""
TABLE_2 = {
    "ViT-H/14, JFT": (
        "88.55 ± 0.04|90.72 ± 0.05|99.50 ± 0.06|94.55 ± 0.04|97.56 ± 0.03|99.68 ± 0.02|77.63 ± 0.23",
        2500,
    ),
    "ViT-L/16, JFT": (
        "87.76 ± 0.03|90.54 ± 0.03|99.42 ± 0.03|93.90 ± 0.05|97.32 ± 0.11|99.74 ± 0.00|76.28 ± 0.46",
        680,
    ),
    "ViT-L/16, ImageNet-21k": (
        "85.30 ± 0.02|88.62 ± 0.05|99.15 ± 0.03|93.25 ± 0.05|94.67 ± 0.15|99.61 ± 0.02|72.72 ± 0.21",
        230,
    ),
    "BiT-L (ResNet152x4), JFT": (
        "87.54 ± 0.02|90.54|99.37 ± 0.06|93.51 ± 0.08|96.62 ± 0.23|99.63 ± 0.03|76.29 ± 1.70",
        9900,
    ),
    "Noisy Student (EfficientNet-L2)": ("88.4 / 88.5|90.55", 12300),
}
"""Table 2 of the paper, by model: accuracies on `BENCHMARKS` in per cent, means and standard deviations of three
fine-tunings, and TPUv3-core-days of pre-training; Noisy Student's second figure is of Touvron et al. (2020)."""


def transfer_page(found: TransferResult) -> str:
    """The whole page as text."""
    of_vtab = [task for task in found.tasks if task.group is not None and found.score(task.name, "vtab-1k")]
    others = [task.name for task in of_vtab if not task.own_draw]
    known = found.model.training_flops
    own_days = "" if known is None else f"{core_days(known).value:.2g}"
    published = [
        [model, f"{days:,.0f}", *islice(chain(accuracies.split("|"), repeat("")), len(BENCHMARKS))]
        for model, (accuracies, days) in TABLE_2.items()
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
        published=published
        + [
            [f"this model, {protocol}", own_days, *(_beside_paper(found, key, protocol) for key in BENCHMARKS)]
            for protocol in found.protocols
        ],
        exaflops=f"{VIT_H_EXAFLOPS:,} exaFLOPs (table 6) in {VIT_H_CORE_DAYS:,} core-days (table 2) are "
        f"{VIT_H_EXAFLOPS * 1e18 / (VIT_H_CORE_DAYS * 86400) / 1e12:.1f} teraflops",
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
