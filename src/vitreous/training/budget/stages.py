"""What fits into a budget: a pure function from what the first seconds cost to how much is looked at.

A training with a budget goes through these stages: start-up, features of training images for a first classifier (with
weights), steps, validation and test images, and writing. Measuring gets at most a quarter of the time; the classifier
comes before the steps; what does not fit is done with fewer images, chosen at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vitreous.data.source import Split

MARGIN = 0.97
"""The share of the time left that is planned for: a machine is never as quiet as while it is measured."""
MEASURING = 0.25
"""The share of the whole time that validation and test images may take together."""
FEW = 16
"""Validation or test images that are looked at however short the time is."""


@dataclass(frozen=True)
class Work:
    """The images that a training would look at, if it had the time."""

    features: int
    """Training images for a classifier on frozen features; 0 where there is none."""
    val: int
    test: int
    passes: int
    """How often the validation images are gone over, at least."""
    fewest: int = 1
    """Training images that the classifier cannot do without."""
    steps: int = 0
    """Looks that the fewest steps worth taking cost."""


@dataclass(frozen=True)
class Costs:
    """What the first seconds have shown, in seconds."""

    spent: float
    """Before the first image was looked at."""
    look: float
    """At one image: decoded, and once through the network."""
    writing: float
    """The bundle, the report, and the end of the process."""
    learn: float = 0.0
    """For each image that a classifier is fitted to."""


@dataclass(frozen=True)
class StagePlan:
    """How many images are looked at, and what is left for steps."""

    work: Work
    features: int
    val: int
    test: int
    training: float
    """Seconds for steps; below 0 where even the fewest images take longer than the budget."""
    worth: float
    """Seconds below which no step is worth taking."""
    enough: float
    """The budget that would do it all, in seconds."""

    @property
    def complete(self) -> bool:
        """Whether every image is looked at, and there is time for steps."""
        asked = (self.work.features, self.work.val, self.work.test)
        return (self.features, self.val, self.test) == asked and self.training > self.worth

    @property
    def parts(self) -> dict[Split, int]:
        """Of the splits that are not looked at as a whole, how many images are."""
        asked: dict[Split, tuple[int, int]] = {
            "train": (self.features, self.work.features),
            "val": (self.val, self.work.val),
            "test": (self.test, self.work.test),
        }
        return {split: count for split, (count, of) in asked.items() if count < of}


def plan_stages(work: Work, costs: Costs, budget: float) -> StagePlan:
    """The images that fit into the budget: val and test within their share, then features, then time for steps."""
    free = MARGIN * budget - costs.spent - costs.writing
    looks = max(0.0, min(MEASURING * budget, free / 2)) / costs.look
    val, test = _divide(looks, work)
    free -= costs.look * (work.passes * val + test)
    each = costs.look + costs.learn
    features = min(work.features, max(work.fewest, int(free / each)))
    left, worth = free - each * features, costs.look * work.steps
    return StagePlan(work, features, _whole(val), _whole(test), left, worth, _enough(work, costs))


def _divide(looks: float, work: Work) -> tuple[float, float]:
    """Images of (val, test): half of the looks for each, and what one of them does not need for the other."""
    for_val = min(work.passes * work.val, max(looks / 2, looks - work.test))
    for_test = min(work.test, looks - for_val)
    return max(min(FEW, work.val), for_val / work.passes), max(min(FEW, work.test), for_test)


def _enough(work: Work, costs: Costs) -> float:
    """The least budget that looks at every image, and leaves as long for steps as the features take."""
    looks = costs.look * (work.passes * work.val + work.test)
    fixed = costs.spent + costs.writing
    features = (costs.look + costs.learn) * work.features
    steps = max(features, costs.look * work.steps)
    least = max(looks / MEASURING, (fixed + 2 * looks) / MARGIN, (fixed + looks + features + steps) / MARGIN)
    return least * (1 + 1e-6) + 1e-3  # so that rounding leaves no image out


def _whole(number: float) -> int:
    """Rounded down, but for what floating-point numbers have lost."""
    return int(number + 1e-9)


def describe_plan(plan: StagePlan, budget: str) -> str:
    """What a person should know at the start, where not all fits: what is left out, and the budget that would do."""
    names = {"train": "training images for the classifier", "val": "validation images", "test": "test images"}
    of: dict[Split, int] = {"train": plan.work.features, "val": plan.work.val, "test": plan.work.test}
    cut = [f"about {count:,} of {of[split]:,} {names[split]}" for split, count in plan.parts.items()]
    would = f"{say_budget(plan.enough)} would do it all"
    if plan.training < 0:
        return (
            f"A budget of {budget} is too short: even the least, a few random images of each split, takes about "
            f"{-plan.training:.0f} s more; {would}."
        )
    if not cut:
        return f"A budget of {budget} leaves no time to train further than a classifier on frozen features; {would}."
    listed = cut[0] if len(cut) == 1 else f"{', '.join(cut[:-1])} and {cut[-1]}"
    return f"A budget of {budget} is enough to measure {listed}, chosen at random; {would}."


def say_budget(seconds: float) -> str:
    """A budget of at least so long, as a person would write it: 25s, 90s, 4m, 1h15m."""
    if seconds <= 120:
        return f"{math.ceil(seconds / 5) * 5}s"
    minutes = math.ceil(seconds / 60)
    if minutes < 60:
        return f"{minutes}m"
    hours, minutes = divmod(math.ceil(minutes / 5) * 5, 60)
    return f"{hours}h{minutes}m" if minutes else f"{hours}h"
