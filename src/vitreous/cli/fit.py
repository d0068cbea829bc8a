"""`vitreous fit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.arguments import Budget, Epochs, Merge, Pixels, Seed, Workers
from vitreous.cli.listening import closing_text, listening, show_ending
from vitreous.cli.terminal import Flag, option

if TYPE_CHECKING:
    from vitreous.training.result import FitResult


def fit(
    data: Annotated[str, tyro.conf.Positional, option("DATA")],
    weights: Annotated[str | None, option("MODEL")] = None,
    distill: Annotated[str | None, option("TEACHER")] = None,
    token_labels: Annotated[str | None, option("TEACHER")] = None,
    model: Annotated[str | None, option("SIZE/PATCH")] = None,
    image_size: Annotated[Pixels | None, option("PIXELS")] = None,
    merge: Annotated[Merge | None, option("COUNT")] = None,
    budget: Annotated[Budget | None, option("TIME")] = None,
    epochs: Annotated[Epochs | None, option("COUNT")] = None,
    recipe: Annotated[str, option("NAME")] = "auto",
    out: Annotated[str | None, option("RUN")] = None,
    preprocess: Annotated[str | None, option("TEXT")] = None,
    seed: Annotated[Seed, option("NUMBER")] = 0,
    workers: Annotated[Workers | None, option("COUNT")] = None,
    device: Annotated[str, option("auto|cpu|cuda")] = "auto",
    shard: Flag = False,
    tensorboard: Flag = False,
    changes: Annotated[tuple[str, ...], option("NAME=VALUE", name="set"), tyro.conf.UseAppendAction] = (),
    json: Flag = False,
) -> int:
    """Train a model on images, from scratch or from given weights.

    If it is interrupted, repeat the same command: it resumes where it stopped.

    Args:
        data: A folder with one subfolder per class, a .csv, .jsonl or .npz, CIFAR or MNIST files, shards, data:NAME,
            or the word builtin.
        weights: Start from this model: a bundle, a run folder, or anything that `vitreous import` reads.
        distill: Learn from this model's answers beside the labels: a bundle, a run folder, or anything that `vitreous
            import` reads. Its classes are matched to the data's by name.
        token_labels: Also learn what this model says of every patch (token labelling): a bundle, a run folder, or
            anything that `vitreous import` reads. Its classes are matched to the data's by name.
        model: Train this model from scratch, such as S/16, Ti/4@32, bit-r50x1 or efficientnet-b0. Default: what suits
            the images.
        image_size: Side of the model's input in pixels; position embeddings are resampled to it.
        merge: Merge so many similar tokens per block (token merging): the model becomes faster, and training goes
            through the images more often in the same time.
        budget: How long everything may take, such as 90s, 5m or 1h30m; the number of steps follows from it.
        epochs: How many times to go through the images, instead of a budget.
        recipe: auto, bit, notebook, paper-finetune, paper-pretrain, plain, scratch, scratch-small, small-data,
            mae-finetune, or vtab.
        out: The run folder. Default: runs/ and the name of the data.
        preprocess: Changes to the weights' preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        seed: Seed for everything random.
        workers: Processes that decode images. Default: one per core, at most 4.
        device: Where to compute; auto takes an accelerator if there is one.
        shard: Divide the weights among the processes that torchrun started (FSDP), rather than giving each a copy.
        tensorboard: Also write curves for TensorBoard to the run folder.
        changes: Change one field of the recipe, such as freeze=6, lora=8, ema=0.99, objective.class_weights=true or
            optimizer.learning_rate=1e-4; may be repeated. config.json in the run folder lists all fields.
        json: Print one JSON object.
    """
    from vitreous.config.change import parse_changes
    from vitreous.jobs.fit import fit as fit_model

    with listening() as callbacks:
        result = fit_model(
            data,
            weights=weights,
            distill=distill,
            token_labels=token_labels,
            model=model,
            image_size=image_size,
            merge=merge,
            budget=budget,
            epochs=epochs,
            recipe=recipe,
            preprocess=preprocess,
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


def _text(result: FitResult) -> str:
    from vitreous.training.result import accuracy_lines

    found = [f"{split} accuracy: {line}" for split, line in accuracy_lines(result).items()]
    found += [] if found else [f"{name}: {value:.4g}" for name, value in result.metrics.items()]
    return closing_text(result, found, [f"use it: vitreous predict {result.run} IMAGE"])
