"""Small models, one for each variant that the config can express, with every weight random."""

import torch

from vitreous import ViT, ViTConfig
from vitreous.config.rope import Rope

TINY = {"width": 16, "depth": 2, "heads": 4, "mlp_width": 24, "patch": 4, "image_size": (12, 16), "classes": 5}

ENCODERS = {
    "clip": {"norm_pre": True, "patch_bias": False, "mlp": "quick-gelu"},
    "projected": {"projection": 7, "classes": 0},
    "tanh gelu": {"mlp": "gelu-tanh", "pool": "attention", "class_token": False},
    "no key bias": {"qkv_bias": "q+v", "qk_norm": True},
    "no qkv bias": {"qkv_bias": "none"},
    "rotary": {"position": "none", "rope": Rope(), "registers": 2, "layer_scale": 0.1},
    "rotary, rounded": {"position": "none", "rope": Rope(bfloat16=True)},
    "rotary of cells": {
        "rope": Rope(10000, "cells", (3, 3), interleaved=True),
        "mlp": "swiglu",
        "mlp_norm": True,
        "attention_norm": True,
        "pool": "mean",
    },
    "perception encoder": {
        "rope": Rope(10000, "cells", (2, 5), offset=1, columns_first=True, interleaved=True),
        "norm_pre": True,
        "pool": "attention",
        "pool_prefix": True,
        "pool_heads": 2,
        "pool_mlp_width": 20,
    },
}
"""What encoders published since have besides."""

VARIANTS = {
    "paper": {},
    **ENCODERS,
    "learned-2d": {"position": "learned-2d"},
    "sincos-2d": {"position": "sincos-2d"},
    "relative": {"position": "relative"},
    "no position": {"position": "none"},
    "norm after": {"norm": "after"},
    "relu": {"mlp": "relu"},
    "swiglu": {"mlp": "swiglu"},
    "mean": {"pool": "mean"},
    "mean without class token": {"pool": "mean", "class_token": False},
    "attention pooling": {"pool": "attention"},
    "attention pooling without class token": {"pool": "attention", "class_token": False},
    "class and mean": {"pool": "class+mean", "registers": 1},
    "class and mean, tanh": {"pool": "class+mean", "classifier": "mlp"},
    "distilled": {"distilled": True},
    "distilled, no classifier, registers": {"distilled": True, "classes": 0, "registers": 2, "position_scope": "class"},
    "norm after pooling": {"pool": "mean", "norm_after_pool": True},
    "class norm after pooling": {"norm_after_pool": True},
    "tanh classifier": {"classifier": "mlp"},
    "no classifier": {"classes": 0},
    "registers": {"registers": 3},
    "registers without position": {"registers": 3, "position_scope": "class"},
    "positions for patches only": {"registers": 1, "position_scope": "patches"},
    "registers, relative": {"registers": 2, "position": "relative"},
    "layer scale": {"layer_scale": 0.1},
    "qk norm": {"qk_norm": True},
    "one channel": {"channels": 1},
    "five channels": {"channels": 5},
    "padded": {"pad": True, "image_size": (11, 14)},
    "one block": {"depth": 1},
    "neighbourhood": {"attention": "neighbourhood", "window": 3},
    "neighbourhood, mean": {"attention": "neighbourhood", "window": 3, "pool": "mean", "registers": 2},
    "neighbourhood, relative": {"attention": "neighbourhood", "window": 3, "position": "relative"},
    "axial": {"attention": "axial", "depth": 3},
    "axial, mean without class token": {"attention": "axial", "pool": "mean", "class_token": False},
    "neighbourhood of pixels, in tiles": {
        "attention": "neighbourhood",
        "window": 3,
        "patch": 1,
        "image_size": (25, 18),
        "pool": "mean",
        "heads": 2,
        "width": 8,
    },
    "axial of pixels, in tiles": {
        "attention": "axial",
        "patch": 1,
        "image_size": (12, 14),
        "pool": "class+mean",
        "registers": 1,
        "heads": 2,
        "width": 8,
    },
    "all at once": {
        "position": "relative",
        "norm": "after",
        "mlp": "swiglu",
        "pool": "attention",
        "registers": 2,
        "layer_scale": 0.5,
        "qk_norm": True,
        "classifier": "mlp",
    },
}


def random_model(seed=0, **changes):
    """A model in evaluation mode in which no weight is zero or one, so that every one of them matters."""
    model = ViT(ViTConfig(**{**TINY, **changes}))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.3)
    return model.eval()


def random_images(model, count=2, seed=1):
    c = model.config
    return torch.randn(count, c.channels, *c.image_size, generator=torch.Generator().manual_seed(seed))
