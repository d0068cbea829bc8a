"""`vitreous pretrain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.arguments import Budget, Epochs, Pixels, Seed, Workers
from vitreous.cli.listening import closing_text, listening, show_ending
from vitreous.cli.terminal import Flag, option

if TYPE_CHECKING:
    from vitreous.training.result import PretrainResult


def pretrain(
    data: Annotated[str, tyro.conf.Positional, option("DATA")],
    method: Annotated[
        Literal["mae", "dino", "dinov2", "masked-patch", "supervised"],
        option("mae|dino|dinov2|masked-patch|supervised"),
    ] = "mae",
    model: Annotated[str | None, option("SIZE/PATCH")] = None,
    image_size: Annotated[Pixels | None, option("PIXELS")] = None,
    budget: Annotated[Budget | None, option("TIME")] = None,
    epochs: Annotated[Epochs | None, option("COUNT")] = None,
    out: Annotated[str | None, option("RUN")] = None,
    seed: Annotated[Seed, option("NUMBER")] = 0,
    workers: Annotated[Workers | None, option("COUNT")] = None,
    device: Annotated[str, option("auto|cpu|cuda")] = "auto",
    shard: Flag = False,
    tensorboard: Flag = False,
    changes: Annotated[tuple[str, ...], option("NAME=VALUE", name="set"), tyro.conf.UseAppendAction] = (),
    json: Flag = False,
) -> int:
    """Learn features without labels: MAE, DINO, DINOv2 or masked patch prediction.

    If it is interrupted, repeat the same command: it resumes where it stopped.

    Args:
        data: Anything that `vitreous fit` takes, or a folder of unsorted images. Labels are never learned from; if
            there are any, they only serve to show how the features improve.
        method: mae: reconstruct hidden patches. dino: match the output of a teacher, the moving average of the model,
            over many views. dinov2: dino with registers, masked patches (iBOT) and spread-out features (KoLeo).
            masked-patch: predict the mean colour of corrupted patches, as in the ViT paper. supervised: learn from
            labels, for comparison.
        model: Which model, such as S/16 or Ti/4@32. Default: what suits the images and a few cores.
        image_size: Side of the model's input in pixels.
        budget: How long everything may take, such as 90s, 30m or 1h30m; the number of steps follows from it.
        epochs: How many times to go through the images, instead of a budget.
        out: The run folder. Default: runs/, the name of the data and the method.
        seed: Seed for everything random.
        workers: Processes that decode images. Default: one per core, at most 4.
        device: Where to compute; auto takes an accelerator if there is one.
        shard: Divide the weights among the processes that torchrun started (FSDP), rather than giving each a copy.
        tensorboard: Also write curves for TensorBoard to the run folder.
        changes: Change one field of the recipe, such as batch_size=64, optimizer.learning_rate=1e-4, objective.mask=0.6
            or objective.teacher_temperature=[0.04,0.05]; may be repeated. config.json in the run folder lists all
            fields.
        json: Print one JSON object.
    """
    from vitreous.config.change import parse_changes
    from vitreous.jobs.pretrain import pretrain as pretrain_model

    with listening() as callbacks:
        result = pretrain_model(
            data,
            method=method,
            model=model,
            image_size=image_size,
            budget=budget,
            epochs=epochs,
            seed=seed,
            out=out,
            workers=workers,
            device=device,
            shard=shard,
            tensorboard=tensorboard,
            changes=parse_changes(changes),
            callbacks=callbacks,
        )
    return show_ending(result, json, lambda: _text(result))


def _text(result: PretrainResult) -> str:
    names = {
        "knn": "k-NN accuracy on held-out images: {:.1%}",
        "loss": "loss on held-out images: {:.3f}",
        "information": "information in the teacher's output on held-out images: {:.1%} of ln K",
        "accuracy": "accuracy: {:.1%}",
    }
    found = [names[name].format(value) for name, value in result.metrics.items() if name in names]
    use = [f"use it: vitreous fit DATA --weights {result.run}"]
    if result.method == "mae":
        use.append(f"see it: vitreous reconstruct {result.run} IMAGE")
    return closing_text(result, [*result.alarms, *found], use)
