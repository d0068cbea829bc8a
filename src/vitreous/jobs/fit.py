"""`vitreous fit`: from a folder of images to a trained model, its metrics and its report, in a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vitreous.arguments import Budget, Epochs, Merge, Pixels, Seed, Workers, checked
from vitreous.callbacks import Callbacks
from vitreous.config.change import as_texts
from vitreous.distributed.launcher import launched
from vitreous.errors import UserError
from vitreous.jobs.report import write_report
from vitreous.training.folder import run_place
from vitreous.training.labelled import LabelledTraining
from vitreous.training.request import FitRequest, check_request, join_runtime, run_name, same_place
from vitreous.training.result import FitResult


@checked
def fit(
    data: str | Path,
    *,
    weights: str | Path | None = None,
    distill: str | Path | None = None,
    token_labels: str | Path | None = None,
    model: str | None = None,
    image_size: Pixels | None = None,
    merge: Merge | None = None,
    budget: Budget | None = None,
    epochs: Epochs | None = None,
    recipe: str = "auto",
    preprocess: str | None = None,
    seed: Seed = 0,
    changes: Mapping[str, object] | None = None,
    out: str | Path | None = None,
    workers: Workers | None = None,
    device: str = "auto",
    shard: bool = False,
    tensorboard: bool = False,
    callbacks: Callbacks | None = None,
) -> FitResult:
    """Train on a dataset, or go on with a training that the same call began; the result says how well it does.

    data: anything `open_data` takes, or "builtin". weights: what to fine-tune: all that `open_weights` takes.
    distill: a model of the same classes whose answers are learned beside the labels: all that `open_weights` takes.
    token_labels: a model of the same classes that gives every patch a label: all that `open_weights` takes.
    merge: how many tokens are merged per block, in training and ever after; the field model.merge (docs/merging.md).
    budget: a time such as "5m" that the whole may take; or epochs. out: the run folder, by default runs/NAME.
    changes: single fields of the recipe's `Training`, such as {"freeze": 6, "optimizer.learning_rate": 1e-4}.
    device: where to compute; "auto" takes an accelerator where there is one. tensorboard: write curves for it too.
    shard: divide the weights among the processes that torchrun started, rather than giving each a copy.
    """
    check_request(budget, epochs, model, image_size)
    if weights is not None and model is not None:
        raise UserError("model and weights: the weights say which model it is; give one of the two.")
    if weights is None and preprocess is not None:
        raise UserError(
            "preprocess: changes how images are prepared for given weights; give weights too, or leave it out."
        )
    if distill is not None and token_labels is not None:
        raise UserError("distill and token_labels: a training learns from one teacher in one way; give one of the two.")
    if budget is not None and (distill or token_labels) is not None and launched() > 1:
        raise UserError("budget: several processes cannot ask a teacher against the clock; give epochs, or start one.")
    if merge is not None:
        if "model.merge" in (changes or {}):
            raise UserError("merge and model.merge: they are the same field; give one of the two.")
        changes = {**(changes or {}), "model.merge": merge}
    request = FitRequest(
        same_place(data),
        None if weights is None else same_place(weights),
        model,
        image_size,
        budget,
        epochs,
        recipe,
        preprocess,
        seed,
        as_texts(changes),
        None if distill is None else same_place(distill),
        None if token_labels is None else same_place(token_labels),
    )
    run = run_place(out, data, run_name(data))
    machine = join_runtime(workers, device, shard, tensorboard)
    return LabelledTraining(request, run, machine, callbacks or Callbacks(), write_report).run()
