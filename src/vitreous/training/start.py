"""The start of a training: the processes, the data, the configuration, the network."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch
from torch import Tensor

from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.config.objective import ObjectiveConfig, Supervised
from vitreous.config.overrides import override
from vitreous.config.train import Training
from vitreous.data.decode import Header, ImageError
from vitreous.data.loader import Loader, choose_workers
from vitreous.data.shards.opening import is_shards
from vitreous.data.source import Data, Source, take_fraction
from vitreous.distributed.launcher import local_rank, local_world_size, refuse_many, world_size
from vitreous.distributed.process_group import join_world
from vitreous.distributed.world import SINGLE_PROCESS, World, find_device
from vitreous.errors import UserError
from vitreous.evaluation.calibration import fit_temperature
from vitreous.evaluation.probe import LabelledFeatures, fit_linear
from vitreous.model.family import build_network, count_flops, inference_batch, network_class
from vitreous.model.initialise import whiten_patches
from vitreous.model.lora import add_lora
from vitreous.model.network import Network, has_stem, require
from vitreous.model.predictions import is_right
from vitreous.model.vit import ViT
from vitreous.objectives.supervised import balance
from vitreous.training.folder import digest_splits
from vitreous.training.recipes.student import choose_teacher_targets, with_distillation, with_noise, with_token_labels
from vitreous.training.recipes.supervised import SMALL_SIDE, DatasetStats, recipe
from vitreous.training.request import FitRequest, StudentRequest
from vitreous.weights.bundle import Bundle
from vitreous.weights.source import parse_preprocess

MIN_HELD_OUT = 500
"""Images that a training without labels sets aside, where that is less than a tenth and enough for all classes."""
MAX_WHITENING_PIXELS = 20_000_000  # that a whitened start is made from, so that large images fit into the memory too
CPU_HOUR_FLOPS, ACCELERATOR_HOUR_FLOPS = 2e14, 4e16
"""Floating-point operations that two cores, and an accelerator, do in about an hour of training."""


@dataclass(frozen=True)
class Runtime:
    """How a run uses the machine; nothing here overrides what is asked for."""

    workers: int  # processes that decode images, for each that trains
    world: World  # the processes that train together, and the device of this one
    tensorboard: bool = False  # write curves for TensorBoard into the run folder

    @property
    def device(self) -> torch.device:
        return self.world.device


def local_runtime(workers: int | None, device: str, tensorboard: bool) -> Runtime:
    """The runtime of a single process."""
    refuse_many("a training of this kind")
    return Runtime(choose_workers(workers), World(device=find_device(device)), tensorboard)


def join_runtime(workers: int | None, device: str, fsdp: bool, tensorboard: bool) -> Runtime:
    """The runtime of all processes that torchrun started; fsdp: divide the weights among them."""
    if fsdp and world_size() == 1:
        raise UserError(
            "fsdp: there is one process, and nobody to share the weights with; leave it out, or start "
            "several with torchrun."
        )
    workers = choose_workers(workers, beside=local_world_size())  # checked before the rendezvous
    return Runtime(workers, replace(join_world(device), sharded=fsdp), tensorboard)


def open_consistent(open_data: Callable[[], Data], place: str, world: World) -> Data:
    """The result of `open_data`, refused if another process sees other images or labels. One process per machine makes
    or fetches the index of shards, which is then cached for the others."""
    if world.size == 1:
        return open_data()
    waits = is_shards(place) and local_rank() > 0
    data = None if waits else open_data()
    world.any_rank(False)  # until all have come so far
    opened = open_data() if data is None else data
    found = world.all_gather_object((opened.classes, digest_splits(opened)))
    for rank, other in enumerate(found):
        if other != found[0]:
            raise UserError(
                f"{place}: process {rank} sees other images, classes or labels there than process 0; give all machines "
                "the same data."
            )
    return opened


def choose_training(
    request: FitRequest,
    data: Data,
    base: Bundle | None,
    device: str = "cpu",
    *,
    teacher: ModelConfig | None = None,
    typical: Source | None = None,
    is_split: bool = False,
) -> Training:
    """The recipe's training for these data, weights and device, with the overrides of the request. typical: the images
    whose sizes count; None for the train split. is_split: the data are split already, so no val split is taken."""
    stats = dataset_stats(typical or data.train, len(data.classes), request.model, request.image_size)
    stats = replace(stats, images=len(data.train), tested="test" in data.splits)
    if request.budget is None and request.epochs is None:
        stats = replace(stats, affordable=CPU_HOUR_FLOPS if device == "cpu" else ACCELERATOR_HOUR_FLOPS)
    if base is not None:
        stats = replace(stats, base=base.model.config, base_preprocess=base.preprocess)
    training = _from_recipe(request, stats, teacher)
    if is_split:
        training = replace(training, validation=0.0, share=1.0)
    if training.validation or training.share < 1:  # what is left out is not trained on, which some recipes count
        left = len(split_for(training, data).train)
        training = _from_recipe(request, replace(stats, images=left), teacher)
    if "batch_size" in request.overrides and training.batch_size > (count := len(split_for(training, data).train)):
        raise UserError(f"batch_size={training.batch_size}: there are {count:,} training images; give at most as many.")
    for name in ("validation", "split_seed"):
        if name in request.all_overrides and "val" in data.splits:
            raise UserError(f"{name}: the data have a val split of their own; leave it out.")
    if training.wise_ft_alpha < 1 and base is None:
        raise UserError("wise_ft_alpha: there is nothing to stay near to without weights to start from; leave it out.")
    return training


def split_for(training: Training, data: Data) -> Data:
    """The data with a val split, if the training wants one, and the training's fraction of the rest."""
    if training.validation:
        seed = training.seed if training.split_seed is None else training.split_seed
        data = data.with_validation(training.validation, seed)
    if training.share == 1:
        return data
    return replace(data, splits={**data.splits, "train": take_fraction(data.train, training.share, training.seed)})


def dataset_stats(source: Source, classes: int, model: str | None, image_size: int | None) -> DatasetStats:
    """Statistics of the images, from some of their headers."""
    headers = sample_headers(source)
    return DatasetStats(
        classes=classes,
        images=len(source),
        side=int(median(min(header.width, header.height) for header in headers)),
        channels=1 if all(header.mode in ("1", "L") for header in headers) else 3,
        model=model,
        image_size=image_size,
    )


def are_photographs(data: Data) -> bool:
    """Whether the images are larger than the tiny ones that a recipe of their own looks at as they are."""
    return dataset_stats(data.train, len(data.classes), None, None).side > SMALL_SIDE


def _from_recipe(request: FitRequest, stats: DatasetStats, teacher: ModelConfig | None) -> Training:
    training, given = replace(recipe(request.recipe, stats), seed=request.seed), stats.base is not None
    if request.distill is not None:
        training = with_distillation(training, scratch=not given)
    if request.token_labels is not None:
        training = with_token_labels(training)
    if isinstance(request, StudentRequest):
        training = with_noise(training, soft=request.pseudo_labels == "soft")

    def settle(changed: Training) -> Training:
        if request.distill is None or teacher is None:
            return changed
        return choose_teacher_targets(changed, teacher, request.all_overrides)

    if request.preprocess is not None:  # the recipe may have changed what a person set
        asked = parse_preprocess(request.preprocess, training.preprocess)
        training = replace(training, preprocess=replace(asked, size=training.preprocess.size))
    training = override(training, request.all_overrides, weights=given, settle=settle)
    return _with_merge_epochs(training) if request.epochs is None else replace(training, epochs=request.epochs)


def _with_merge_epochs(training: Training) -> Training:
    """With more epochs if token merging makes each cheaper, so that the training takes as long as without. A network
    has to get used to merging, and the saved time is best spent on that (docs/log.md)."""
    model = training.model
    if not isinstance(model, ViTConfig) or not model.merge:
        return training
    saved = count_flops(replace(model, merge=0)) / count_flops(model)
    return replace(training, epochs=max(training.epochs, round(saved * training.epochs)))


def starting_network(training: Training, base: Bundle | None) -> Network:
    """The network to train: new, or the given one at the training's resolution with a new classifier."""
    network = build_network(training.model, seed=training.seed)
    if base is not None:
        given = base.model
        state = network_class(given.config).resize(given.state_dict(), given.config, training.model.image_size)
        own = network.without_classifier(network.state_dict())
        fresh = {name: tensor for name, tensor in network.state_dict().items() if name not in own}
        network.load_state_dict({**given.without_classifier(state), **fresh})
    if training.lora:
        add_lora(network, training.lora, training.seed)
    if training.freeze:
        groups = network.parameter_groups()
        for name, parameter in network.named_parameters():  # LoRA of frozen layers too
            if groups[name].layer < training.freeze:
                parameter.requires_grad_(False)
    return network


def with_crop_of_weights(training: Training, base: Bundle | None, request: FitRequest) -> Training:
    """For a result without steps: only these make objects look larger than the weights know them."""
    if base is None or "preprocess.crop" in request.overrides or training.preprocess.crop > base.preprocess.crop:
        return training
    return replace(training, preprocess=replace(training.preprocess, crop=base.preprocess.crop))


def crop_message(training: Training, base: Bundle, chosen: str | None = None) -> str | None:
    """A message if the training crops another fraction of an image than the weights were trained with.

    chosen: the name of the weights, if the person did not give one.
    """
    seen, came = training.preprocess.crop, base.preprocess.crop
    if seen == came:
        return None
    return (
        f"The model will look at the middle {seen:.0%} of each side of an image, as the recipe has it; the weights "
        f"came with {came:.0%}. Give {f'--weights {chosen} ' if chosen else ''}--preprocess crop={came:g} to keep that."
    )


def whiten(network: Network, training: Training, source: Source, workers: int) -> None:
    """Initialise the patch projection by whitening, from at most 2000 images spread over the source."""
    vit = require(network, ViT, "whiten")
    if has_stem(vit):
        raise UserError("whiten=true: a hybrid's stem looks at the pixels, not the patch projection; set whiten=false.")
    height, width = training.model.image_size
    most = max(1, min(2000, MAX_WHITENING_PIXELS // (height * width)))
    some = source.subset(list(range(0, len(source), -(-len(source) // most))))
    loader = Loader(some, training.preprocess, batch_size=64, workers=workers, unreadable_limit=1.0)
    with closing(loader):
        images = torch.cat([batch.images for batch in loader.batches()])
    whiten_patches(vit, images, training.seed)


def hold_out(data: Data, seed: int) -> Data:
    """The data with a small val split, for a training without labels. If a class is too small to be split, the labels
    are dropped and the images split at random."""
    if "val" in data.splits:
        return data
    train = data.train
    _, counts = np.unique(train.labels, return_counts=True)
    if data.classes and counts.min() < 2:
        data = Data({"train": train.with_labels(np.full(len(train), -1), ())}, (), data.notes)
    return data.with_validation(min(0.1, max(MIN_HELD_OUT, 2 * len(data.classes)) / len(train)), seed)


def draw_images(source: Source, most: int, seed: int) -> Source:
    if len(source) <= most:
        return source
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    return source.subset(sorted(order[:most].tolist()))


def sample_headers(source: Source, most: int = 32) -> list[Header]:
    """Headers of some images, spread over the source; unreadable ones are reported later."""
    headers = []
    for index in range(0, len(source), max(1, len(source) // most)):
        with suppress(ImageError):
            headers.append(source.header(index))
    if not headers:
        raise UserError(
            f"{source.name(0)}: neither this nor any other image that was tried can be read; check the data."
        )
    return headers


MAX_VIEW_BATCH = 256
"""The largest batch of views in evaluation, because one process may not have the memory for the batch of many. It does
not depend on their number, because an objective may depend on the batch; no recipe has a larger one."""


def training_loader(source: Source, t: Training, workers: int, world: World = SINGLE_PROCESS) -> Loader:
    """Augmented images in the views of the objective; of each batch this process's slice."""
    return Loader(
        source,
        t.preprocess,
        t.augment,
        batch_size=t.batch_size,
        seed=t.seed,
        workers=workers,
        views=t.objective.views,
        patch=t.model.patch if isinstance(t.model, ViTConfig) else None,
        world=world,
    )


def plain_loader(source: Source, t: Training, workers: int, world: World = SINGLE_PROCESS) -> Loader:
    """Images without augmentation; unreadable ones are skipped and reported."""
    batch = inference_batch(t.model)
    return Loader(source, t.preprocess, batch_size=batch, workers=workers, unreadable_limit=1.0, world=world)


def evaluation_loader(source: Source, t: Training, workers: int, world: World = SINGLE_PROCESS) -> Loader:
    """The images for evaluating the objective: plain, or in its views, the same each time."""
    if not t.objective.evaluates_views:
        return plain_loader(source, t, workers, world)
    return Loader(
        source,
        t.preprocess,
        t.augment,
        batch_size=min(t.batch_size, MAX_VIEW_BATCH),
        seed=t.seed,
        shuffle=False,
        views=t.objective.views,
        unreadable_limit=1.0,
        world=world,
    )


def fit_classifier(
    network: Network,
    known: LabelledFeatures,
    held_out: LabelledFeatures | None,
    classes: int,
    objective: ObjectiveConfig,
) -> float | None:
    """Set the network's classifier to a linear probe on its features; its accuracy on held-out images. known: features
    (n, D) and labels (n,). held_out: others, which choose the regularisation."""
    features, labels = known
    weighted = isinstance(objective, Supervised) and objective.class_weights
    weights = balance(labels, classes) if weighted else None
    classifier = fit_linear(features, labels, classes, validation=held_out, class_weights=weights)
    with torch.no_grad():
        for layer in network.classifiers():
            layer.weight.copy_(classifier.weight)
            layer.bias.copy_(classifier.bias)
    if held_out is None:
        return None
    return is_right(classifier(held_out[0]), held_out[1]).float().mean().item()


def set_temperature(network: Network, logits: Tensor, labels: Tensor) -> Tensor:
    """Calibrate the network's classifier by temperature scaling; returns the scaled logits (n, K)."""
    factor = 1 / fit_temperature(logits, labels)
    with torch.no_grad():
        for layer in network.classifiers():
            layer.weight.mul_(factor)
            layer.bias.mul_(factor)
    return factor * logits
