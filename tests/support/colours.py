"""A task that a tiny model does perfectly: tell red, green and blue images apart."""

import numpy as np
import torch
from PIL import Image

from vitreous import ViT, ViTConfig
from vitreous.config.data import Preprocess
from vitreous.evaluation.probe import fit_linear
from vitreous.weights.bundle import save_bundle

COLOURS = ("blue", "green", "red")
PREPROCESS = Preprocess(size=(16, 16))


def pixels(colour, seed, size=(20, 24)):
    """(h, w, 3) uint8: noise, and 120 more in one channel."""
    made = np.random.default_rng(seed).integers(0, 100, (*size, 3))
    made[:, :, {"red": 0, "green": 1, "blue": 2}[colour]] += 120
    return made.astype(np.uint8)


def make_images(root, count=4, colours=COLOURS, seed=0):
    """A folder with a folder for each colour."""
    for k, colour in enumerate(colours):
        (root / colour).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(pixels(colour, seed + 100 * k + i)).save(root / colour / f"{i}.png")
    return root


def make_bundle(path, labels=COLOURS):
    """A bundle whose classifier was fitted to the features of a random model."""
    model = ViT(ViTConfig(width=32, depth=1, heads=2, mlp_width=64, patch=8, image_size=(16, 16), classes=3)).eval()
    views = [pixels(colour, 1000 + i, (16, 16)) for i in range(40) for colour in COLOURS]
    images = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        probe = fit_linear(model.representation(images), torch.arange(3).repeat(40), 3, weight_decays=[1e-3])
        model.head.weight.copy_(probe.weight)
        model.head.bias.copy_(probe.bias)
    return save_bundle(path, model, PREPROCESS, labels)
