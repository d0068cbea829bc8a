"""A transfer that was never done, for its page and its means."""

from dataclasses import replace

from vitreous.studies.transfer.result import Absent, Task, TaskScore, TransferredModel, TransferResult


def task(name, group):
    counts = {"train": 9, "test": 100}
    return Task(name, f"data:{name}", name, group, 2, counts, {"train": "a", "test": "b"}, True, counts)


def score(name, accuracy, low, high):
    return TaskScore(
        name, "knn", accuracy, (low, high), 100, 100, 9, 9, {}, {"k": 20, "temperature": 0.07}, 1e9, 2.0, "torch"
    )


MODEL = TransferredModel("m", "ViT-Ti/16", 5, (224, 224), 10, "d", None)
TASKS = (
    task("pets", "natural"),
    task("dtd", "natural"),
    task("eurosat", "specialized"),
    replace(task("own", None), dataset=None),
)
SCORES = (
    score("pets", 0.9, 0.87, 0.92),
    score("dtd", 0.5, 0.46, 0.54),
    score("eurosat", 0.7, 0.6, 0.8),
    score("own", 0.1, 0.1, 0.1),
)
ABSENT = (Absent("svhn", "natural", None, "not here"), Absent("dmlab", "structured", "knn", "no time"))
FOUND = TransferResult("out", True, MODEL, ("knn",), None, None, {}, TASKS, SCORES, ABSENT, {}, 8.0)


def hostile(name):
    """The same with a name that tries to break a page, wherever a person's words are shown."""
    odd = replace(task(name, None), place=name, remarks=(name,), digests={name: name})
    return replace(
        FOUND,
        model=replace(MODEL, name=name, description=name),
        tasks=(*TASKS, odd),
        scores=(*SCORES, replace(score(name, 0.5, 0.4, 0.6), engine=name, remarks=(name,))),
        absent=(Absent(name, None, None, name),),
        remarks=(name,),
    )
