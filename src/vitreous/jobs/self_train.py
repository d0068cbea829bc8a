"""`vitreous self-train`: Noisy Student, from some labelled and many unlabelled images to a model and their labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from vitreous.arguments import Budget, Count, Epochs, Pixels, Seed, Workers, checked
from vitreous.callbacks import Callbacks
from vitreous.config.change import as_texts
from vitreous.errors import UserError
from vitreous.jobs.report import write_report
from vitreous.studies.self_training.folder import SelfTrainResult
from vitreous.studies.self_training.self_training import SelfTraining
from vitreous.training.folder import run_place
from vitreous.training.request import SelfTrainRequest, check_request, local_runtime, run_name, same_place
from vitreous.wording import Range


@checked
def self_train(
    labelled: str | Path,
    unlabelled: str | Path,
    *,
    rounds: Annotated[int, Range(1, 100)] = 3,
    teacher: str | Path | None = None,
    student: str | None = None,
    confidence: Annotated[float, Range(0, 1)] = 0.3,
    per_class: Count | None = None,
    labels: Literal["soft", "hard"] = "soft",
    weights: str | Path | None = None,
    model: str | None = None,
    image_size: Pixels | None = None,
    budget: Budget | None = None,
    epochs: Epochs | None = None,
    recipe: str = "auto",
    preprocess: str | None = None,
    seed: Seed = 0,
    changes: Mapping[str, object] | None = None,
    out: str | Path | None = None,
    workers: Workers | None = None,
    device: str = "auto",
    callbacks: Callbacks | None = None,
) -> SelfTrainResult:
    """Train a teacher on labelled images, then students on its labels of others; or go on with what this call began.

    labelled: anything `fit` takes. unlabelled: a folder of images, or other data, whose labels are not looked at;
        copies of labelled images are left out.
    teacher: a model that knows the classes, in place of one that is trained on the labelled images.
    student: the students' model, such as "S/16"; if None, the teacher's `model`, or what suits the images.
    confidence: the least probability of a label that is taken. per_class: how many of each class; if None, all that
        are sure enough divided by the classes. labels: "soft", the teacher's probabilities, or "hard".
    budget: a time for all rounds together; or epochs, of each round. The rest as for `fit`, for teacher and students.
    out: the folder, by default runs/NAME-self-train; it can be used as a model, and its report.html tells of all.
    """
    check_request(budget, epochs, model, image_size)
    if student is not None:
        check_request(None, None, student, image_size)
    if weights is not None and (model is not None or student is not None):
        named = "model" if model is not None else "student"
        raise UserError(f"{named} and weights: the weights say which model it is; give one of the two.")
    if weights is None and preprocess is not None:
        raise UserError(
            "preprocess: changes how images are prepared for given weights; give weights too, or leave it out."
        )
    if teacher is not None and model is not None:
        raise UserError("model and teacher: the teacher is there already; give student for the model of the students.")
    request = SelfTrainRequest(
        labelled=same_place(labelled),
        unlabelled=same_place(unlabelled),
        rounds=rounds,
        teacher=None if teacher is None else same_place(teacher),
        student=student,
        confidence=confidence,
        per_class=per_class,
        labels=labels,
        weights=None if weights is None else same_place(weights),
        model=model,
        image_size=image_size,
        budget=budget,
        epochs=epochs,
        recipe=recipe,
        preprocess=preprocess,
        seed=seed,
        changes=as_texts(changes),
    )
    run = run_place(out, labelled, f"{run_name(labelled)}-self-train")
    run_place(out, unlabelled, run.name)
    machine = local_runtime(workers, device, tensorboard=False)
    return SelfTraining(request, run, machine, callbacks or Callbacks(), write_report).run()
