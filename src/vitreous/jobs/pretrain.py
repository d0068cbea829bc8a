"""`vitreous pretrain`: from images without labels to a model whose features are worth something, in a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vitreous.arguments import Budget, Epochs, Pixels, Seed, Workers, checked
from vitreous.callbacks import Callbacks
from vitreous.config.change import as_texts
from vitreous.errors import UserError
from vitreous.jobs.fit import fit
from vitreous.jobs.report import write_report
from vitreous.training.folder import run_place
from vitreous.training.recipes.pretrain import PRETRAINING
from vitreous.training.request import PretrainRequest, check_request, join_runtime, run_name, same_place
from vitreous.training.result import PretrainResult
from vitreous.training.unlabelled import UnlabelledTraining


@checked
def pretrain(
    data: str | Path,
    *,
    method: str = "mae",
    model: str | None = None,
    image_size: Pixels | None = None,
    budget: Budget | None = None,
    epochs: Epochs | None = None,
    seed: Seed = 0,
    changes: Mapping[str, object] | None = None,
    out: str | Path | None = None,
    workers: Workers | None = None,
    device: str = "auto",
    shard: bool = False,
    tensorboard: bool = False,
    callbacks: Callbacks | None = None,
) -> PretrainResult:
    """Learn features from images, or go on with what the same call began; `fit(weights=...)` then takes the run.

    data: anything `fit` takes, or a folder of images without class folders; labels are not learned from. method: mae,
    dino, dinov2, masked-patch, or supervised for comparison, which needs labels. out: the run folder, by default
    runs/NAME-METHOD.
    changes: single fields of the recipe, such as {"optimizer.learning_rate": 1e-4, "objective.koleo_weight": 0.1}.
    shard: divide the weights among the processes that torchrun started, rather than giving each a copy.
    """
    if method not in (*PRETRAINING, "supervised"):
        raise UserError(f"method {method!r}: choose one of {', '.join(PRETRAINING)} or supervised.")
    check_request(budget, epochs, model, image_size)
    run = run_place(out, data, f"{run_name(data)}-{method}")
    if method == "supervised":
        done = fit(
            data,
            model=model,
            image_size=image_size,
            budget=budget,
            epochs=epochs,
            seed=seed,
            changes=changes,
            out=run,
            workers=workers,
            device=device,
            shard=shard,
            tensorboard=tensorboard,
            callbacks=callbacks,
        )
        return PretrainResult.of_fit(done)
    request = PretrainRequest(
        same_place(data),
        method,
        model,
        image_size,
        budget,
        epochs,
        seed,
        as_texts(changes),
    )
    machine = join_runtime(workers, device, shard, tensorboard)
    return UnlabelledTraining(request, run, machine, callbacks or Callbacks(), write_report).run()
