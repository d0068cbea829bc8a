"""Two classes of grey images, a small model that was trained for others, and a short training on both."""

import numpy as np
from PIL import Image

from vitreous import ViT
from vitreous.config.data import Preprocess
from vitreous.verbs.fit import fit
from vitreous.weights.bundle import save_bundle


def draw_images(folder, count=12, side=20, classes=("dark", "light")):
    """A folder with a folder for each class: grey noise around a level of its own."""
    draw = np.random.default_rng(0)
    for level, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = draw.integers(0, 60, (side, side, 3)) + 150 * level // (len(classes) - 1)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


def make_weights(place, seed=7):
    """A bundle with five other classes."""
    model = ViT("N/4@16", depth=1, width=32, heads=2, mlp_width=32, classes=5, seed=seed)
    return save_bundle(place, model, Preprocess(size=(16, 16)), list("abcde"))


def quick_fit(images, weights, out, **more):
    return fit(images, weights=weights, epochs=2, out=out, workers=0, **more)


def stop_after(steps):
    """A question that is answered with yes after so many steps."""
    answers = iter([False] * steps)
    return lambda: next(answers, True)
