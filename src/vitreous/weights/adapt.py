"""The same model for other pictures or other classes: resolution, patch, channels, classifier."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.errors import UserError
from vitreous.model.position import resample_state
from vitreous.model.vit import ViT


def adapt(
    model: ViT,
    preprocess: Preprocess,
    *,
    image_size: int | tuple[int, int] | None = None,
    patch: int | None = None,
    channels: int | None = None,
    classes: int | None = None,
    epsilon: float | None = None,
) -> tuple[ViT, Preprocess]:
    """The model and its preprocessing, changed where asked.

    image_size, patch: positions are resampled to the new grid, and the patch projection by the pseudo-inverse of the
        resize (FlexiViT), so that a patch and the same patch resized give the same token.
    channels: any number from 1 or 3, or 1 from any number. To 1, kernels are added up: a grey picture gives the tokens
        that it gave in equal channels. To more, they are repeated in turn and scaled so that tokens keep their size.
    classes: a new classifier of zeros with so many outputs, or with 0 none.
    epsilon: of every LayerNorm; formats that know one alone need it. No tensor changes.
    """
    config, state = model.config, dict(model.state_dict())
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if size is not None or patch is not None:
        state, config = resample_state(state, config, size or config.image_size, patch)
        preprocess = replace(preprocess, size=size or preprocess.size)
    if channels is not None and channels != config.channels:
        _check_channels(config.channels, channels)
        state, preprocess = _rechannel(state, preprocess, channels)
        config = replace(config, channels=channels)
    if classes is not None and classes != config.classes:
        if classes < 0:
            raise UserError(f"--classes {classes}: must be 0 (no classifier) or more.")
        state = {name: tensor for name, tensor in state.items() if not name.startswith(("head", "pre_logits"))}
        config = replace(config, classes=classes, classifier="linear")
        for head in ("head", "head_dist")[: 1 + config.distilled] if classes else ():
            state[f"{head}.weight"] = torch.zeros(classes, config.features)
            state[f"{head}.bias"] = torch.zeros(classes)
    if epsilon is not None:
        config = replace(config, norm_eps=epsilon)
    if config == model.config:
        return model, preprocess
    changed = ViT(config, seed=None)
    changed.load_state_dict(state)
    return changed.eval(), preprocess


def _check_channels(old: int, new: int) -> None:
    if new < 1:
        raise UserError(f"--channels {new}: give the number of channels, 1 for grey pictures, 3 for colour.")
    if old not in (1, 3) and new != 1:
        raise UserError(
            f"--channels {new}: the model takes {old} channels, and none of them can be told to be red, green or blue; "
            "leave it at them, or give 1."
        )


def _rechannel(state: dict[str, Tensor], preprocess: Preprocess, channels: int) -> tuple[dict[str, Tensor], Preprocess]:
    """The patch projection for another number of channels, and the preprocessing that goes with it.

    To one: channel c saw (g - mean_c) / std_c of a grey value g, and the sum over c is again of the form
    (g - mean) / std, with kernels added up at their scale and the difference of the means in the bias.
    To n, of m: channel c has the kernel, mean and spread of channel c mod m, and m/n of its weight. This is timm's rule
    for m = 3: n terms instead of m are summed, and the sum must stay as large as what later layers were trained on.
    """
    weight, bias = state["patch_embed.proj.weight"].double(), state["patch_embed.proj.bias"].double()
    mean, std = preprocess.mean, preprocess.std
    if channels == 1:
        means, stds = (torch.tensor(values, dtype=torch.float64) for values in (mean, std))
        mean, std = (means.mean().item(),), (stds.mean().item(),)
        bias = bias + (weight.sum((2, 3)) * ((mean[0] - means) / stds)).sum(1)
        weight = (weight * (std[0] / stds)[:, None, None]).sum(1, keepdim=True)
    else:
        turn = [channel % len(mean) for channel in range(channels)]
        mean, std = tuple(mean[c] for c in turn), tuple(std[c] for c in turn)
        weight = weight[:, turn] * len(preprocess.mean) / channels
    projection = {"patch_embed.proj.weight": weight.float(), "patch_embed.proj.bias": bias.float()}
    return {**state, **projection}, replace(preprocess, mean=mean, std=std)
