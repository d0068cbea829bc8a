"""Adapt a model to another resolution, patch size, number of channels or classes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.config.model import ModelConfig
from vitreous.errors import UserError
from vitreous.memory import check_memory
from vitreous.model.family import build_network, check_weights_fit, network_class
from vitreous.model.network import Network, require
from vitreous.model.position import resample_state
from vitreous.model.vit import ViT


def adapt(
    model: Network,
    preprocess: Preprocess,
    *,
    image_size: int | tuple[int, int] | None = None,
    patch: int | None = None,
    channels: int | None = None,
    classes: int | None = None,
    epsilon: float | None = None,
) -> tuple[Network, Preprocess]:
    """The model and its preprocessing with these changes.

    image_size, patch: a ViT's positions are resampled to the new grid, and the patch projection by the pseudo-inverse
        of the resize (FlexiViT), so that a patch and the same patch resized give the same token.
    channels: any number from 1 or 3, or 1 from any number. To 1, kernels are summed: a grey image gives the same tokens
        as before in equal channels. To more, they are repeated in turn and scaled so that tokens keep their norm.
        BiT standardises its kernels itself, so its channels differ by a factor in grey.
    classes: outputs of a new classifier of zeros; 0 for no classifier.
    epsilon: of every LayerNorm, for formats that allow only one. No tensor changes.
    """
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    config = _adapted(model, size, patch, channels, classes, epsilon)
    if config == model.config:
        return model, preprocess if size is None else replace(preprocess, size=size)
    check_weights_fit(config)
    state = dict(model.state_dict())
    if patch is not None:
        vit = require(model, ViT, f"patch={patch}")
        state, _ = resample_state(state, vit.config, size or vit.config.image_size, patch)
    elif size is not None:
        state = network_class(model.config).resize(state, model.config, size)
    if size is not None:
        preprocess = replace(preprocess, size=size)
    if config.channels != model.config.channels:
        state, preprocess = _rechannel(model, state, preprocess, config.channels)
    if config.classes != model.config.classes:
        state = model.without_classifier(state)
    changed = build_network(config, seed=None)
    fresh = {name: torch.zeros_like(tensor) for name, tensor in changed.state_dict().items() if name not in state}
    changed.load_state_dict({**state, **fresh})
    return changed.eval(), preprocess


def _adapted(
    model: Network,
    size: tuple[int, int] | None,
    patch: int | None,
    channels: int | None,
    classes: int | None,
    epsilon: float | None,
) -> ModelConfig:
    """The new configuration, so that its cost is known before anything is computed."""
    config: Any = model.config  # of whichever family
    if patch is not None:
        vit = require(model, ViT, f"patch={patch}")
        old = vit.config.patch
        if patch != old:  # the resize is a matrix from old pixels to new
            check_memory(3 * 8 * old**2 * patch**2, f"patch={patch}", f"choose one nearer to the model's own, {old}")
        config = vit.config.resized(size or vit.config.image_size, patch)
    elif size is not None:
        config = config.for_size(size)
    if channels is not None and channels != config.channels:
        if channels < 1:
            raise UserError(f"channels={channels}: give the number of channels, 1 for grey images, 3 for colour.")
        if config.channels not in (1, 3) and channels != 1:
            raise UserError(
                f"channels={channels}: the model takes {config.channels} channels, and none of them can be told to be "
                "red, green or blue; leave it at them, or give 1."
            )
        config = replace(config, channels=channels)
    if classes is not None and classes != config.classes:
        if classes < 0:
            raise UserError(f"classes={classes}: must be 0 (no classifier) or more.")
        config = config.for_classes(classes)
    if epsilon is not None:
        require(model, ViT, f"epsilon={epsilon:g}")
        config = replace(config, norm_eps=epsilon)
    adapted: ModelConfig = config
    return adapted


def _rechannel(
    model: Network, state: dict[str, Tensor], preprocess: Preprocess, channels: int
) -> tuple[dict[str, Tensor], Preprocess]:
    """The first convolution for another number of channels, and the preprocessing that goes with it.

    To one: channel c saw (g - mean_c) / std_c of a grey value g, and the sum over c is again of the form
    (g - mean) / std, with kernels added up at their scale and the difference of the means in the bias.
    To n, of m: channel c has the kernel, mean and std of channel c mod m, and m/n of its weight. This is timm's rule
    for m = 3: n terms instead of m are summed, and the sum must stay as large as what later layers were trained on.
    """
    found = model.first_convolution()
    if found is None or found[1].groups != 1:
        raise UserError(
            f"channels={channels}: no convolution looks at the pixels of a model of the family "
            f"{model.config.family!r}, so its channels cannot be changed; leave it out."
        )
    name, convolution = found
    weight = state[f"{name}.weight"].double()
    mean, std = preprocess.mean, preprocess.std
    changed: dict[str, Tensor] = {}
    if channels == 1:
        means, stds = (torch.tensor(values, dtype=torch.float64) for values in (mean, std))
        mean, std = (means.mean().item(),), (stds.mean().item(),)
        shift = (weight.sum((2, 3)) * ((mean[0] - means) / stds)).sum(1)
        if convolution.bias is not None and not any(convolution.padding):
            changed[f"{name}.bias"] = (state[f"{name}.bias"].double() + shift).float()
        elif (means != means[0]).any():
            raise UserError(
                "channels=1: the first convolution has no bias or pads the image, so it cannot take up the "
                "difference between the channels' means; give one number for all: preprocess='mean=0.5'."
            )
        weight = (weight * (std[0] / stds)[:, None, None]).sum(1, keepdim=True)
    else:
        turn = [channel % len(mean) for channel in range(channels)]
        mean, std = tuple(mean[c] for c in turn), tuple(std[c] for c in turn)
        weight = weight[:, turn] * len(preprocess.mean) / channels
    changed[f"{name}.weight"] = weight.float()
    return {**state, **changed}, replace(preprocess, mean=mean, std=std)
