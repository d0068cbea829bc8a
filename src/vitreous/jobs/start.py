"""Where a training begins: the configuration that the data and the weights call for, and the model."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import replace
from statistics import median

import numpy as np
import torch
from torch import nn

from vitreous.config.change import change
from vitreous.config.train import Training
from vitreous.data.decode import Header, PictureError
from vitreous.data.loader import Loader
from vitreous.data.source import Data, Source
from vitreous.errors import UserError
from vitreous.jobs.run import Request
from vitreous.model.initialise import whiten_patches
from vitreous.model.lora import add_lora
from vitreous.model.network import require
from vitreous.model.position import resample_state
from vitreous.model.vit import ViT
from vitreous.recipes.supervised import Situation, recipe
from vitreous.weights.bundle import Bundle

ASIDE = 500
"""Pictures that a training without labels sets aside, where that is less than a tenth and enough for all classes."""
WHITENING = 20_000_000
"""Pixels that a whitened start is made from, so that large pictures fit into the memory too."""


def choose_training(request: Request, data: Data, base: Bundle | None) -> Training:
    """What the recipe makes of these data and weights, with what the person set otherwise."""
    situation = situation_of(data.train, len(data.classes), request.model, request.image_size)
    situation = replace(situation, tested="test" in data.splits)
    if base is not None:
        situation = replace(situation, base=require(base.model, ViT, "fit").config, base_preprocess=base.preprocess)
    training = _from_recipe(request, situation)
    if training.validation:  # what is set aside is not trained on, which some recipes count
        left = len(data.with_validation(training.validation, request.seed).train)
        training = _from_recipe(request, replace(situation, pictures=left))
    if training.blend < 1 and base is None:
        raise UserError("--set blend: there is nothing to stay near to without --weights; leave it away.")
    return training


def situation_of(source: Source, classes: int, model: str | None, image_size: int | None) -> Situation:
    """What is known of pictures before a training from nothing."""
    headers = some_headers(source)
    return Situation(
        classes=classes,
        pictures=len(source),
        side=int(median(min(header.width, header.height) for header in headers)),
        channels=1 if all(header.mode in ("1", "L") for header in headers) else 3,
        model=model,
        image_size=image_size,
    )


def _from_recipe(request: Request, situation: Situation) -> Training:
    training = replace(recipe(request.recipe, situation), seed=request.seed)
    training = change(training, request.changes, weights=situation.base is not None)
    return training if request.epochs is None else replace(training, epochs=request.epochs)


def starting_model(training: Training, base: Bundle | None) -> ViT:
    """The model to train: new, or the given one at the training's resolution with a new classifier of zeros."""
    model = ViT(training.model, seed=training.seed)
    if base is not None:
        config = require(base.model, ViT, "fit").config
        state, _ = resample_state(base.model.state_dict(), config, training.model.image_size)
        fresh = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(("head", "pre_logits"))}
        state = {name: tensor for name, tensor in state.items() if not name.startswith(("head", "pre_logits"))}
        model.load_state_dict({**state, **fresh})
    if training.freeze:
        for name, parameter in model.named_parameters():
            block = int(name.split(".")[1]) if name.startswith("blocks.") else None
            early = name.startswith(("patch_embed", "cls_token", "dist_token", "reg_token", "pos_embed"))
            if early or (block is not None and block < training.freeze):
                parameter.requires_grad_(False)
    if training.lora:
        add_lora(model, training.lora, training.seed)
    return model


def whiten(model: ViT, training: Training, source: Source, workers: int) -> None:
    """Let the model's patch projection start whitened, from at most 2000 pictures of all over the source."""
    height, width = training.model.image_size
    most = max(1, min(2000, WHITENING // (height * width)))
    some = source.subset(list(range(0, len(source), -(-len(source) // most))))
    loader = Loader(some, training.preprocess, batch_size=64, workers=workers, unreadable_limit=1.0)
    with closing(loader):
        images = torch.cat([batch.images for batch in loader.batches()])
    whiten_patches(model, images, training.seed)


def set_aside(data: Data, seed: int) -> Data:
    """The data with a small validation part, for a training without labels.

    Where a class is too small to be split, the pictures are split without regard to their classes, and have none.
    """
    if "val" in data.splits:
        return data
    train = data.train
    _, counts = np.unique(train.labels, return_counts=True)
    if data.classes and counts.min() < 2:
        data = Data({"train": train.with_labels(np.full(len(train), -1), ())}, (), data.notes)
    return data.with_validation(min(0.1, max(ASIDE, 2 * len(data.classes)) / len(train)), seed)


def some_of(source: Source, most: int, seed: int) -> Source:
    """At most so many pictures, from all over the source."""
    if len(source) <= most:
        return source
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    return source.subset(sorted(order[:most].tolist()))


def classifiers_of(model: ViT) -> list[nn.Linear]:
    """The last layer; of a distilled model both, whose mean is the score."""
    return [layer for layer in (model.head, model.head_dist) if isinstance(layer, nn.Linear)]


def some_headers(source: Source, most: int = 32) -> list[Header]:
    """Sizes and kinds of some pictures, from all over the source; those that cannot be read are reported later."""
    headers = []
    for index in range(0, len(source), max(1, len(source) // most)):
        with suppress(PictureError):
            headers.append(source.header(index))
    if not headers:
        raise UserError(
            f"{source.name(0)}: neither this nor any other picture that was tried can be read; check the data."
        )
    return headers
