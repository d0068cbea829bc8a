"""What a page may have to show: made-up results of any number of classes, with names that try to break it."""

from functools import cache

import numpy as np
import torch
from PIL import Image

from vitreous import ViT, ViTConfig
from vitreous.config.data import Preprocess
from vitreous.config.train import Optimizer, Training
from vitreous.distributed.meter import Cost
from vitreous.evaluation.classify import score_classes
from vitreous.evaluation.intervals import Paired
from vitreous.report.page import Content, Example, Run, SplitScores, page, weight_figures
from vitreous.report.weight_plots import WeightPlots
from vitreous.studies.requests import SelfTrainRequest
from vitreous.studies.self_train.page import UncertainImage, self_training_page
from vitreous.studies.self_train.result import Round, RoundLabels, RoundScore, SelfTrainResult
from vitreous.weights.bundle import Bundle

NASTY = ("<script>alert(1)</script>", "a & b \"quoted\" 'name'", "$x^2$", "猫と犬 🐈", "<b>bold", "long " * 40)


def labels(count):
    return [*NASTY, *(f"class {k}" for k in range(count))][:count]


def scored(name="test", classes=6, n=300, seed=0):
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (n,), generator=draw)
    scores = torch.randn(n, classes, generator=draw) + 3 * torch.nn.functional.one_hot(targets, classes)
    names = [f"data/<i>{i}</i>.png" for i in range(n)]
    result = score_classes(scores, targets, labels(classes), names=names)

    def looked_at(answers):
        images = Image.new("RGB", (40, 30), "red"), Image.new("RGB", (40, 30))
        return tuple(Example(answer, *images) for answer in answers[:3])

    wrong, right = looked_at(result.surest_wrong), looked_at(result.surest_right)
    return SplitScores(name, result, name == "validation", wrong, right)


def bundle(classes=6):
    model = ViT(ViTConfig(width=16, depth=2, heads=2, mlp_width=32, patch=4, image_size=(8, 16), classes=classes))
    return Bundle(model.eval(), Preprocess(size=(8, 16)), tuple(labels(classes)))


def run(classes=6):
    training = Training(
        bundle(classes).model.config,
        Preprocess(size=(8, 16)),
        optimizer=Optimizer(learning_rate=2e-4, weight_decay=0.05),
        batch_size=8,
        epochs=2.5,
        seed=3,
    )
    records = [{"step": s, "loss": 3 / s, "accuracy": 1 - 1 / s, "learning_rate": 2e-4 / s} for s in range(1, 41)]
    records += [{"step": s, "val_loss": 4 / s, "val_accuracy": 1 - 2 / s} for s in (10, 20, 30, 40)]
    return Run(
        place="runs/it's here",
        data="images & more",
        start=None,
        method="auto",
        training=training,
        images=1234,
        classes=classes,
        steps=40,
        planned=40,
        best_step=30,
        frozen=(0.625, 4.2),
        spent=Cost(seconds=754.2, core_hours=0.41, images=12345, flops=2.5e13, joules=7200.0),
        records=records,
    )


def content(classes=6):
    splits = (scored("test", classes), scored("validation", classes, n=50, seed=1))
    model = bundle(classes)
    distances = np.linspace(1, 6, 4, dtype=np.float32).reshape(2, 2)
    figures = WeightPlots(model.model, model.preprocess.size, distances).plots()
    trained = run(classes)
    return Content(
        "a <run>",
        trained.place,
        model,
        trained,
        splits=splits,
        spent=trained.spent,
        weight_figures=weight_figures(figures),
    )


@cache
def plain_page(classes=6):
    """The page of `content`, drawn once."""
    return page(content(classes))


def self_training(name="colours", rounds=2):
    """The page of a self-training in which all has this name."""
    labels = RoundLabels(9, 1.5, {name: 4}, {name: 3}, {name: 6}, 2)
    score = RoundScore(9, 0.5, (0.2, 0.8), 1.0)
    done = [Round(k, name, name, 10**6, 9, score, None, labels if k else None, Cost(3.0)) for k in range(rounds)]
    image = UncertainImage(name, Image.new("RGB", (20, 20)), ((name, 0.6), (name, 0.4)), name)
    result = SelfTrainResult(
        run=name,
        bundle=name,
        finished=True,
        classes=(name,),
        labelled=7,
        unlabelled=7,
        duplicates=7,
        rounds=tuple(done),
        best=1,
        changed=7,
        spent=Cost(),
        against_teacher=Paired("test", 98, 4, 12),
        remarks=(name,),
    )
    return self_training_page(name, name, SelfTrainRequest(name, name), result, 7, [image], [image], 1)
