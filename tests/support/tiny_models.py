"""Small models with random weights, and the preprocessing that fits them."""

import torch

from support.variants import ENCODERS
from vitreous import ViT, ViTConfig
from vitreous.config.data import Preprocess

TINY = {"width": 16, "depth": 2, "heads": 4, "mlp_width": 24, "patch": 4, "image_size": (12, 16), "classes": 5}
LABELS = ("ape", "bee", "cat", "dog", "élan")

VARIANTS = {
    "paper": {},
    "learned-2d": {"position": "learned-2d"},
    "sincos-2d": {"position": "sincos-2d", "sincos_grid": (6, 8)},
    "relative": {"position": "relative"},
    "no position": {"position": "none"},
    "norm after": {"norm": "after"},
    "relu": {"mlp": "relu"},
    "swiglu": {"mlp": "swiglu"},
    "mean without class token": {"pool": "mean", "class_token": False},
    "attention pooling": {"pool": "attention"},
    "norm after pooling": {"pool": "mean", "norm_after_pool": True},
    "tanh classifier": {"classifier": "mlp"},
    "no classifier": {"classes": 0},
    "registers, positions for patches": {"registers": 3, "position_scope": "patches"},
    "class and mean": {"pool": "class+mean"},
    "distilled": {"distilled": True},
    "layer scale": {"layer_scale": 0.1},
    "qk norm": {"qk_norm": True},
    "one channel": {"channels": 1},
    **ENCODERS,
    "padded": {"pad": True, "image_size": (11, 14)},
}


def random_model(seed=0, **changes):
    """A model in evaluation mode in which every weight is random."""
    model = ViT(ViTConfig(**{**TINY, **changes}), seed=None)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.3)
        for block in model.blocks:
            if not block.attn.qkv.key_bias:
                block.attn.qkv.bias.chunk(3)[1].zero_()
    return model.eval()


def preprocess_for(model):
    c = model.config
    return Preprocess(size=c.image_size, mean=(0.4,) * c.channels, std=(0.2,) * c.channels, crop=0.9)


def random_images(model, count=2):
    c = model.config
    return torch.randn(count, c.channels, *c.image_size, generator=torch.Generator().manual_seed(1))
