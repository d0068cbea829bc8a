"""The time that a person gave: how much of it is gone, and what the first images say about the rest."""

from __future__ import annotations

from collections.abc import Callable

from vitreous.distributed.meter import Meter
from vitreous.distributed.world import World
from vitreous.training.budget.stages import Costs, StagePlan, Work, describe_plan, plan_stages

SLOWEST = 3.0
"""Times as long is set aside for writing at most, on a machine whose start-up took long."""
STARTING = 2.2
"""Seconds that the start-up of a command takes on two quiet cores."""
LEAVING = 0.7
"""Seconds from the last file written to the end of the process."""
TELLING = 1.0
"""Seconds after which the cost of looking at an image is known well enough."""


class Clock:
    """The clock of a training with a budget, as long as it is not interrupted: one that goes on keeps to its plan."""

    def __init__(self, text: str, seconds: float, writing: float, meter: Meter, world: World) -> None:
        """`text` is the budget as the person wrote it. To be made as soon as the training begins.

        writing: seconds that the bundle, the report and the end of the process take on two quiet cores.
        """
        self.text, self.deadline, self._meter, self._world = text, seconds, meter, world
        # start-up and writing are both the work of one core, so a slow start foretells slow writing
        self.writing = writing * min(SLOWEST, max(1.0, world.mean_number(meter.seconds) / STARTING))

    def now(self) -> float:
        """Seconds gone, the same in all processes."""
        return self._world.mean_number(self._meter.seconds)

    def left(self) -> float:
        """Seconds until this process should have ended; never below 0."""
        return max(0.0, self.deadline - LEAVING - self._meter.seconds)


class Outlook:
    """What fits into the time, judged again whenever images were looked at; said once, as soon as not all does."""

    def __init__(self, work: Work, clock: Clock, say: Callable[[str], None], learn: float = 0.0) -> None:
        self.work, self.clock, self.say, self.learn = work, clock, say, learn
        self.began, self.said, self.look = clock.now(), False, 0.0
        self.plan: StagePlan

    def judge(self, looked: int, last: bool = False) -> bool:
        """Whether enough is known after so many images; `last`: there are no more, so it must be."""
        taken = self.clock.now() - self.began
        self.look = taken / looked
        costs = Costs(self.began, self.look, self.clock.writing, self.learn)
        self.plan = plan_stages(self.work, costs, self.clock.deadline)
        known = last or taken >= TELLING
        if known and not self.said and not self.plan.complete:
            self.say(describe_plan(self.plan, self.clock.text))
            self.said = True
        return known
