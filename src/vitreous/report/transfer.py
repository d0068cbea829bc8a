"""`transfer.html`: how well a model does on many tasks, beside the paper's table, and what that cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vitreous.config.study import Protocol
from vitreous.report.html import Html, document, facts, table, tag
from vitreous.report.numbers import duration, operations, parameters
from vitreous.report.paper_table import BENCHMARKS, DAYS, EXAFLOPS, TABLE_2, core_days
from vitreous.report.transferred import GROUPS, SOME_OF_VTAB, VTAB, Mean, Task, TaskScore, TransferResult

UNFINISHED = ": it was stopped, and these are the scores that it has so far; repeat the command to go on."
WORDS: dict[Protocol, str] = {
    "vtab-1k": "fine-tuned on 1,000 images of each task",
    "full": "fine-tuned on all training images",
    "linear": "a linear classifier on frozen features of all training images",
    "knn": "the weighted vote of the nearest training images by frozen features, of 20 where there are as many",
    "fewshot-5": "least squares on frozen features of 5 images per class, the mean of 5 draws",
}


def transfer_page(found: TransferResult) -> str:
    """The whole page as text."""
    unfinished = () if found.finished else (tag("p", tag("strong", "Unfinished"), UNFINISHED),)
    lede = tag("p", _lede(found), class_="lede")
    body = [
        tag("header", tag("p", "Transfer", class_="kind"), tag("h1", found.model.name), lede, *unfinished),
        _section("Accuracy", _accuracies(found)),
        _section("Beside the paper", _beside(found)),
        _section("What it cost", _cost(found)),
        _section("How each figure came about", _scores(found)),
        _section("The tasks", [_scrolled(_tasks(found))]),
    ]
    if found.absent:
        body.append(_section("Not measured", _absent(found)))
    if remarks := _remarks(found):
        body.append(_section("Remarks", [tag("ul", *(tag("li", remark) for remark in remarks))]))
    return document(f"{found.model.name}, transfer: vitreous", body)


def _section(title: str, content: Iterable[Html]) -> Html:
    return tag("section", tag("h2", title), *content)


def _scrolled(content: Html) -> Html:
    return tag("div", content, class_="wide")


def _lede(found: TransferResult) -> str:
    m, tasks = found.model, {score.task for score in found.scores}
    height, width = m.image_size
    missing = sum(one.protocol is None for one in found.absent)
    left = f" {missing} more task{'s have' if missing > 1 else ' has'} no data here." if missing else ""
    given = f" All of it was given {found.budget}." if found.budget is not None else ""
    return (
        f"{m.description} at {height} x {width}, {parameters(m.parameters)}, on {len(tasks)} "
        f"task{'s' if len(tasks) != 1 else ''}.{left}{given}"
    )


def _accuracies(found: TransferResult) -> Iterator[Html]:
    count = len(found.protocols)
    rows = [_row(found, task) for task in _in_order(found.tasks)]
    yield _scrolled(table(["task", "group", *found.protocols], rows, numbers=count))
    there = {mean.what for mean in found.means}
    names = [name for name in (*GROUPS, VTAB, SOME_OF_VTAB, "all") if name in there]
    if names:
        yield tag("h3", "Means")
        rows = [_mean_row(found, name) for name in names]
        yield _scrolled(table(["mean of", *found.protocols], rows, numbers=count))
        yield from _drawn(found)
    yield facts({protocol: WORDS[protocol] for protocol in found.protocols})
    yield tag(
        "p",
        "Accuracy in per cent, with its 95 % interval by the number of test images measured; that of few-shot "
        "accuracy counts the five draws too. A mean's interval takes the tasks as given. A task that was not measured "
        "is in no mean, and a mean of fewer tasks than there are, or of a part of their images, is not VTAB's score.",
        class_="quiet",
    )


def _drawn(found: TransferResult) -> Iterator[Html]:
    """Which images VTAB-1k is of, where they are not its authors'."""
    of_vtab = [task for task in found.tasks if task.group is not None and found.score(task.name, "vtab-1k")]
    others = [task.name for task in of_vtab if not task.own_draw]
    if others:
        which = "" if len(others) == len(of_vtab) else f" of {', '.join(others)}"
        yield tag(
            "p",
            f"The 1,000 images{which} under vtab-1k are drawn by VTAB's rule, and are not VTAB's own draw.",
            class_="quiet",
        )


def _in_order(tasks: Sequence[Task]) -> list[Task]:
    """VTAB's groups first, each together."""
    places = {group: number for number, group in enumerate(GROUPS)}
    return sorted(tasks, key=lambda task: places.get(task.group, len(places)) if task.group else len(places))


def _row(found: TransferResult, task: Task) -> list[str]:
    scores = (found.score(task.name, protocol) for protocol in found.protocols)
    return [task.name, task.group or "", *("" if score is None else _with_interval(score) for score in scores)]


def _mean_row(found: TransferResult, what: str) -> list[str]:
    by_protocol = {mean.protocol: mean for mean in found.means if mean.what == what}
    means = (by_protocol.get(protocol) for protocol in found.protocols)
    return [what, *("" if mean is None else _mean_text(mean) for mean in means)]


def _mean_text(mean: Mean) -> str:
    return f"{_interval_text(mean.value, mean.interval)}, {mean.tasks} of {mean.of}"


def _with_interval(score: TaskScore) -> str:
    return _interval_text(score.accuracy, score.interval)


def _interval_text(value: float, interval: tuple[float, float]) -> str:
    return f"{100 * value:.1f} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def _beside(found: TransferResult) -> Iterator[Html]:
    """The paper's table, turned on its side."""
    head = ["", "TPUv3-core-days", *BENCHMARKS.values()]
    rows = [
        [one.model, f"{one.core_days:,.0f}", *(one.accuracies.get(key, "") for key in BENCHMARKS)] for one in TABLE_2
    ]
    known = found.model.training_flops
    own = "" if known is None else f"{core_days(known).value:.2g}"
    rows += [
        [f"this model, {protocol}", own, *(_ours(found, key, protocol) for key in BENCHMARKS)]
        for protocol in found.protocols
    ]
    yield _scrolled(table(head, rows, numbers=len(head) - 1))
    yield tag(
        "p",
        "The paper's figures are table 2 of \u201cAn Image is Worth 16x16 Words\u201d (Dosovitskiy et al. 2021), in "
        "per cent: fine-tuned on all training images at 384 pixels or more (VTAB: on 1,000 of each task), mean and "
        "standard deviation of three runs; TPUv3-core-days are of pre-training. ",
        _alike(found),
        " The other rows say what the same model does with less. A figure followed by “50 of 100” is of so many of the "
        "published test images; one followed by “other images” was learned from a part of the published ones, or "
        "from others. ReaL is not measured here: vitreous evaluate MODEL imagenet/val --labels real does that. ",
        _own_words(found),
        class_="quiet",
    )


def _alike(found: TransferResult) -> str:
    """Which rows can be held against the paper's, and in what they differ even so."""
    if found.budget is not None:
        side = "the model's own size" if found.image_size is None else f"{found.image_size} pixels"
        return (
            "With a budget no row of this model is measured as the paper's are; the nearest are full, the recipe auto, "
            f"and vtab-1k, the recipe small-data with the better of two learning rates, both at {side} for as long as "
            "there was time."
        )
    side = "384 pixels (378 with patches of 14)" if found.image_size is None else f"{found.image_size} pixels"
    return (
        "Of this model's rows, full and, for VTAB, vtab-1k have the paper's settings, each in one run at "
        f"{side}. For full the learning rate is always 0.03, where the paper chose one of four for each task, and of "
        "data without a val split a tenth is set aside to choose the weights, where the paper learned from all."
    )


def _own_words(found: TransferResult) -> str:
    if found.model.training_flops is None:
        return "What this model's own pre-training took is not known: its weights do not say it."
    return "What this model's own training took is in its bundle."


def _ours(found: TransferResult, benchmark: str, protocol: Protocol) -> str:
    if benchmark == "vtab":
        whole = next((mean for mean in found.means if (mean.protocol, mean.what) == (protocol, VTAB)), None)
        return "" if whole is None else _interval_text(whole.value, whole.interval)
    task = next((task for task in found.tasks if task.dataset == benchmark), None)
    score = None if task is None else found.score(task.name, protocol)
    if task is None or score is None:
        return ""
    return _with_interval(score) + ("" if found.is_whole(score) else f"; {_departure(task, score)}")


def _departure(task: Task, score: TaskScore) -> str:
    """In what a figure that stands in the paper's column is of other images than the paper's."""
    published = task.published or {}
    of = published.get("test", published.get("val", score.of))
    return f"{score.n:,} of {of:,}" if score.n + score.unreadable < of else "other images"


def _cost(found: TransferResult) -> Iterator[Html]:
    days = found.core_days
    yield tag("p", f"This transfer took {operations(found.flops)} in {duration(found.seconds)}. In the paper's unit:")
    yield tag("p", str(days))
    rows = {
        "operations": "Training steps forward and backward, one forward pass for each image that was measured, "
        "turned into features (even if these were kept from an earlier command) or looked at for validation; counted "
        "from the model's sizes, a multiplication and an addition as two.",
        "peak": "A TPU v3 chip does 123 teraflops in bfloat16 (Google Cloud's page of it) with two cores: 61.5 each.",
        "utilisation": f"Assumed as in the paper's own largest training: {EXAFLOPS:,} exaFLOPs (table 6) in {DAYS:,} "
        f"core-days (table 2) are {EXAFLOPS * 1e18 / (DAYS * 86400) / 1e12:.1f} teraflops, {days.utilisation:.0%} of "
        "the peak.",
    }
    if found.model.training_flops is not None:
        rows["this model's training"] = str(core_days(found.model.training_flops))
    yield facts(rows)


def _scores(found: TransferResult) -> Iterator[Html]:
    head = ["task", "protocol", "accuracy, %", "test images", "learned from", "settings", "computed by", "time"]
    yield _scrolled(table(head, [_score_row(score) for score in found.scores]))
    yield tag(
        "p",
        "transfer.json has every setting, and for each figure the hashes of the images that were learned from, "
        "chosen by and measured.",
        class_="quiet",
    )


def _score_row(score: TaskScore) -> list[str]:
    return [
        score.task,
        score.protocol,
        _with_interval(score),
        score.tested,
        _learned_from(score.trained_on, score.trained_of),
        _settings(score),
        score.engine,
        duration(score.seconds),
    ]


def _learned_from(count: int, of: int) -> str:
    return f"{count:,}" if count == of else f"{count:,} of {of:,}, equally many of each class"


def _settings(score: TaskScore) -> str:
    s = score.settings
    if score.protocol == "linear":
        return f"weight decay {s['weight_decay']:g}"
    if score.protocol == "knn":
        return f"k = {s['k']:g}, temperature {s['temperature']:g}"
    if score.protocol == "fewshot-5":
        return f"mean of {s['draws']} draws"
    rate = s["optimizer.learning_rate"]
    said = f"{s['optimizer.name']} {rate:g}, batch {s['batch_size']}, {s['steps']:,} steps"
    if score.trials:
        tried = ", ".join(f"{t.settings['optimizer.learning_rate']:g}: {t.accuracy:.1%}" for t in score.trials)
        said += f"; of the {score.trials[0].n} validation images by learning rate: {tried}"
    return said


def _tasks(found: TransferResult) -> Html:
    rows = [
        [
            task.name,
            task.place,
            f"{task.classes:,}",
            ", ".join(f"{count:,} {split}" for split, count in task.splits.items()),
            {True: "yes", False: "no", None: ""}[task.as_published],
            ", ".join(f"{split} {digest}" for split, digest in task.digests.items()),
        ]
        for task in found.tasks
    ]
    return table(["task", "data", "classes", "images", "as published", "hashes"], rows)


def _absent(found: TransferResult) -> Iterator[Html]:
    rows = [[one.task, one.group or "", one.protocol or "all", one.reason] for one in found.absent]
    yield _scrolled(table(["task", "group", "protocol", "why"], rows))


def _remarks(found: TransferResult) -> list[str]:
    of_tasks = [f"{task.name}: {remark}" for task in found.tasks for remark in task.remarks]
    of_scores = [f"{score.task}, {score.protocol}: {one}" for score in found.scores for one in score.remarks]
    return [*found.remarks, *of_tasks, *of_scores]
