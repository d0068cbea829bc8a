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
    channels: 3 to 1 gives for a grey picture the tokens that it had in three equal channels; 1 to 3 likewise.
    classes: a new classifier of zeros with so many outputs, or with 0 none.
    epsilon: of every LayerNorm; formats that know one alone need it. No tensor changes.
    """
    config, state = model.config, dict(model.state_dict())
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if size is not None or patch is not None:
        state, config = resample_state(state, config, size or config.image_size, patch)
        preprocess = replace(preprocess, size=size or preprocess.size)
    if channels is not None and channels != config.channels:
        if channels not in (1, 3):
            raise UserError(f"--channels {channels}: pictures have 1 (grey) or 3 (colour); give one of them.")
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


def _rechannel(state: dict[str, Tensor], preprocess: Preprocess, channels: int) -> tuple[dict[str, Tensor], Preprocess]:
    """The patch projection for another number of channels, and the preprocessing that goes with it.

    To one: channel c saw (g - mean_c) / std_c of a grey value g, and the sum over c is again of the form
    (g - mean) / std, with kernels added up at their scale and the difference of the means in the bias.
    To three: each has a third of the kernel.
    """
    weight, bias = state["patch_embed.proj.weight"].double(), state["patch_embed.proj.bias"].double()
    if channels == 3:
        new = preprocess.mean * 3, preprocess.std * 3
        weight = weight.repeat(1, 3, 1, 1) / 3
    else:
        means, stds = (torch.tensor(values, dtype=torch.float64) for values in (preprocess.mean, preprocess.std))
        mean, std = means.mean(), stds.mean()
        new = (mean.item(),), (std.item(),)
        bias = bias + (weight.sum((2, 3)) * ((mean - means) / stds)).sum(1)
        weight = (weight * (std / stds)[:, None, None]).sum(1, keepdim=True)
    projection = {"patch_embed.proj.weight": weight.float(), "patch_embed.proj.bias": bias.float()}
    return {**state, **projection}, replace(preprocess, mean=new[0], std=new[1])
