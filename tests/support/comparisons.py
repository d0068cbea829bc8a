"""A comparison by hand: accuracies that are known, so that what a page or a verdict says of them is known too."""

from vitreous.distributed.meter import Cost
from vitreous.explain.analysis.bias_result import Bias, Effect, ReceptiveField, Shifts
from vitreous.studies.compare.result import Cell, ComparedModel, Comparison, Trial

CONV, PLAIN, DONE = "C+P/4@32", "P/4@32", "runs/<b>old"
# With few images the convolutions are ahead by ten points, with all the two are level.
ACCURACIES = {(PLAIN, 0.1): (0.40, 0.42, 0.41), (CONV, 0.1): (0.50, 0.52, 0.51),
              (PLAIN, 1.0): (0.70, 0.74, 0.72), (CONV, 1.0): (0.73, 0.71, 0.72)}  # fmt: skip


def effect(at: float, same: float) -> Effect:
    return Effect(at, same, 0.1, 0.9, 0.5)


def bias(same: float, attention: bool) -> Bias:
    return Bias(
        images=64,
        size=(32, 32),
        patch=4,
        accuracy=0.7,
        shifts=Shifts(0.7, (effect(1, same), effect(4, same)), effect(1, same), effect(4, 0.5)),
        attention_distance=(0.25, 0.375) if attention else None,
        receptive_field=ReceptiveField(0.125, (0.1, 0.2), (0.4, 0.8)),
        effects={
            "shuffled": (effect(2, 0.625),),
            "low_pass": (effect(0.5, 0.7),),
            "high_pass": (effect(0.5, 0.3),),
        },
        low_needed=0.33,
        high_enough=0.21,
    )


def cells() -> tuple[Cell, ...]:
    trained = [
        Cell(
            model=model,
            fraction=fraction,
            seed=seed,
            place=f"out/cells/{seed}",
            images=round(5000 * fraction),
            accuracy=accuracy,
            interval=(accuracy - 0.01, accuracy + 0.01),
            n=10_000,
            validation=accuracy + 0.01,
            spent=Cost(60.0 if seed else 57.0, 0.03, 10_000, 3e12 if model == CONV else 2e12),
            settings={"steps": 100, "learning_rate": 0.001},
        )
        for (model, fraction), values in ACCURACIES.items()
        for seed, accuracy in enumerate(values)
    ]
    old = Cell(DONE, None, None, DONE, None, 0.9, (0.89, 0.91), 10_000, None, None)
    return (*trained, old)


def comparison(**changes) -> Comparison:
    fields = {
        "out": "out",
        "finished": True,
        "data": "images/",
        "classes": 10,
        "splits": {"train": 5000, "test": 10_000},
        "digests": {"train": "0123456789abcdef", "test": "fedcba9876543210"},
        "split": "test",
        "equal": "time",
        "budget": "15m",
        "cell_seconds": 60.0,
        "cell_flops": None,
        "settings": {
            "recipe": "plain",
            "batch_size": 64,
            "optimizer": {"name": "adamw", "weight_decay": 0.05, "decay": "cosine"},
            "augment": {"pad": 4, "crop_scale": None},
        },
        "models": (
            ComparedModel(PLAIN, "A ViT of width 96", 400_000, 60_000_000, (32, 32), True, 0.001),
            ComparedModel(CONV, "A hybrid", 500_000, 90_000_000, (32, 32), True, 0.003),
            ComparedModel(DONE, "A BiT", 700_000, 200_000_000, (32, 32), False),
        ),
        "cells": cells(),
        "tried": (
            Trial(PLAIN, 0.001, 0.6, 1.0, 500, Cost(30.0, flops=1e12)),
            Trial(PLAIN, 0.003, 0.5, 1.1, 500, Cost(30.0, flops=1e12)),
            Trial(CONV, 0.003, 0.65, 0.9, 500, Cost(30.0, flops=1e12)),
        ),
        "machine": {"cores": 2},
        "biases": {PLAIN: bias(0.8125, attention=True), CONV: bias(0.9375, attention=False)},
        "remarks": ("Beware of <script>.",),
    }
    return Comparison(**{**fields, **changes})
