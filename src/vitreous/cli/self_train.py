"""`vitreous self-train`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.arguments import Budget, Count, Epochs, Pixels, Seed, Workers
from vitreous.cli.listening import listening, show_ending
from vitreous.cli.terminal import Flag, option
from vitreous.wording import Range

if TYPE_CHECKING:
    from vitreous.report.rounds import Round
    from vitreous.studies.self_training.folder import SelfTrainResult


def self_train(
    labelled: Annotated[str, tyro.conf.Positional, option("LABELLED")],
    unlabelled: Annotated[str, tyro.conf.Positional, option("UNLABELLED")],
    rounds: Annotated[Annotated[int, Range(1, 100)], option("COUNT")] = 3,
    teacher: Annotated[str | None, option("MODEL")] = None,
    student: Annotated[str | None, option("SIZE/PATCH")] = None,
    confidence: Annotated[Annotated[float, Range(0, 1)], option("SHARE")] = 0.3,
    per_class: Annotated[Count | None, option("COUNT")] = None,
    labels: Annotated[Literal["soft", "hard"], option("soft|hard")] = "soft",
    weights: Annotated[str | None, option("MODEL")] = None,
    model: Annotated[str | None, option("SIZE/PATCH")] = None,
    image_size: Annotated[Pixels | None, option("PIXELS")] = None,
    budget: Annotated[Budget | None, option("TIME")] = None,
    epochs: Annotated[Epochs | None, option("COUNT")] = None,
    recipe: Annotated[str, option("NAME")] = "auto",
    out: Annotated[str | None, option("FOLDER")] = None,
    preprocess: Annotated[str | None, option("TEXT")] = None,
    seed: Annotated[Seed, option("NUMBER")] = 0,
    workers: Annotated[Workers | None, option("COUNT")] = None,
    device: Annotated[str, option("auto|cpu|cuda")] = "auto",
    changes: Annotated[tuple[str, ...], option("NAME=VALUE", name="set"), tyro.conf.UseAppendAction] = (),
    json: Flag = False,
) -> int:
    """Learn from a few labelled and many unlabelled images: Noisy Student.

    A teacher learns from the labelled images and labels the others; a noised student learns from both and becomes
        the next teacher. A page shows how each round does and which labels are doubtful. If it is interrupted, repeat
        the same command: it resumes where it stopped.

    Args:
        labelled: A folder with one subfolder per class, a .csv, .jsonl or .npz, CIFAR or MNIST files.
        unlabelled: A folder of images, sorted or not, or any other data; labels are not looked at, and copies of
            labelled images are left out.
        rounds: How many students, each with the one before as its teacher.
        teacher: Begin with this model, which knows the classes, instead of training a teacher.
        student: Model of the students, such as S/16; should be as large as the teacher or larger. Default: that of
            the teacher, or what suits the images.
        confidence: The least probability of a label that is learned from.
        per_class: How many images of each class to learn from, the surest first; rare classes come in copies.
            Default: all that are sure enough, divided by the classes.
        labels: soft: learn the teacher's probabilities; hard: learn its likeliest class.
        weights: Start teacher and students from this model: a bundle, a run folder, or anything that `vitreous import`
            reads.
        model: Train this model from scratch, such as S/16 or Ti/4@32. Default: what suits the images.
        image_size: Side of the model's input in pixels.
        budget: How long all rounds may take together, such as 10m or 1h30m.
        epochs: How many times each round goes through its images, instead of a budget.
        recipe: As for `vitreous fit`; students get dropout, stochastic depth, and RandAugment unless the recipe has
            TrivialAugment.
        out: The folder of all rounds. Default: runs/NAME-self-train.
        preprocess: Changes to the weights' preprocessing, such as "mean=0.5,std=0.5".
        seed: Seed for everything random.
        workers: Processes that decode images. Default: one per core, at most 4.
        device: Where to compute; auto takes an accelerator if there is one.
        changes: Change one field of the recipe, of teacher and students, such as optimizer.learning_rate=1e-4; may be
            repeated.
        json: Print one JSON object.
    """
    from vitreous.config.change import parse_changes
    from vitreous.jobs.self_train import self_train as train_students

    with listening() as callbacks:
        result = train_students(
            labelled,
            unlabelled,
            rounds=rounds,
            teacher=teacher,
            student=student,
            confidence=confidence,
            per_class=per_class,
            labels=labels,
            weights=weights,
            model=model,
            image_size=image_size,
            budget=budget,
            epochs=epochs,
            recipe=recipe,
            preprocess=preprocess,
            seed=seed,
            out=out,
            workers=workers,
            device=device,
            changes=parse_changes(changes),
            callbacks=callbacks,
        )
    return show_ending(result, json, lambda: _text(result))


def _text(result: SelfTrainResult) -> str:
    chosen = any(one.validation is not None for one in result.rounds)
    return "\n".join(
        [
            *map(_line, result.rounds),
            f"kept: round {result.best}, {'the best on validation images' if chosen else 'the last'}",
            *_against_teacher(result),
            f"labels: {result.run}/labels/final/labels.csv, of {result.unlabelled:,} images",
            f"report: {result.run}/report.html, with the images whose label is doubtful",
            f"use it: vitreous predict {result.run} IMAGE",
        ]
    )


def _against_teacher(result: SelfTrainResult) -> list[str]:
    paired = result.against_teacher
    if paired is None:
        return []
    low, high = (f"{100 * value:+.1f}" for value in paired.interval)
    return [
        f"kept less teacher: {100 * paired.difference:+.1f} points on the same {paired.n:,} images ({paired.split}), "
        f"95 % interval {low} to {high}"
    ]


def _line(one: Round) -> str:
    scores = {"validation": one.validation, "test": one.test}
    found = [f"{name} {score.accuracy:.1%} of {score.n:,}" for name, score in scores.items() if score is not None]
    taken = "" if one.labels is None else f", {sum(one.labels.taken.values()):,} labels taken"
    return f"round {one.number}: {', '.join(found) or 'not measured'}{taken}"
