"""What a page may have to show: made-up results of any number of classes, with names that try to break it."""

from functools import cache

import numpy as np
import torch
from PIL import Image

from vitreous import ViT, ViTConfig
from vitreous.config.data import Preprocess
from vitreous.evaluate.classify import score_classes
from vitreous.jobs.plot_weights import WeightsView
from vitreous.report.content import Content, Example, Part, Run
from vitreous.report.page import looks, page
from vitreous.weights.bundle import Bundle

NASTY = ("<script>alert(1)</script>", "a & b \"quoted\" 'name'", "$x^2$", "猫と犬 🐈", "<b>bold", "long " * 40)


def labels(count):
    return [*NASTY, *(f"class {k}" for k in range(count))][:count]


def part(name="test", classes=6, n=300, seed=0):
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (n,), generator=draw)
    scores = torch.randn(n, classes, generator=draw) + 3 * torch.nn.functional.one_hot(targets, classes)
    names = [f"data/<i>{i}</i>.png" for i in range(n)]
    figures = score_classes(scores, targets, labels(classes), names=names).to_json()

    def looked_at(kind):
        answers = figures[f"surest_{kind}"][:3]
        return tuple(Example(one, Image.new("RGB", (40, 30), "red"), Image.new("RGB", (40, 30))) for one in answers)

    return Part(name, figures, looked_at("wrong"), looked_at("right"))


def bundle(classes=6):
    model = ViT(ViTConfig(width=16, depth=2, heads=2, mlp_width=32, patch=4, image_size=(8, 16), classes=classes))
    return Bundle(model.eval(), Preprocess(size=(8, 16)), tuple(labels(classes)))


def run(classes=6):
    optimizer = {"name": "adamw", "rate": 2e-4, "weight_decay": 0.05, "decay": "cosine"}
    config = {
        "request": {"data": "pictures & more", "weights": None, "recipe": "auto"},
        "steps": 40,
        "training": {"batch_size": 8, "epochs": 2.5, "seed": 3, "optimizer": optimizer},
    }
    spent = {"seconds": 754.2, "core_hours": 0.41, "pictures": 12345, "flops": 2.5e13, "joules": 7200.0}
    result = {
        "pictures": 1234, "classes": labels(classes), "steps": 40, "best_step": 30, "spent": spent,
        "probe": {"accuracy": 0.625, "seconds": 4.2}, "remarks": [],
    }  # fmt: skip
    records = [{"step": s, "loss": 3 / s, "accuracy": 1 - 1 / s, "rate": 2e-4 / s} for s in range(1, 41)]
    records += [{"step": s, "val_loss": 4 / s, "val_accuracy": 1 - 2 / s} for s in (10, 20, 30, 40)]
    return Run(config, result, records)


def content(classes=6):
    parts = (part("test", classes), part("validation", classes, n=50, seed=1))
    model = bundle(classes)
    distances = np.linspace(1, 6, 4, dtype=np.float32).reshape(2, 2)
    figures = WeightsView(model.model, model.preprocess.size, distances).figures()
    return Content("a <run>", "runs/it's here", model, run(classes), parts=parts, looks=looks(figures))


@cache
def plain_page(classes=6):
    """The page of `content`, drawn once."""
    return page(content(classes))
