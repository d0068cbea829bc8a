"""A training's schedule: replans computed by hand, and made-up machines whose clock the tests know."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import pytest

from vitreous import ViTConfig
from vitreous.config.data import Augment, Preprocess
from vitreous.config.train import Optimizer, Training
from vitreous.training.deadline import Replanner, Reserved, plan_steps
from vitreous.training.step import StepSchedule, parts_done


def test_without_bends_progress_is_the_share_of_the_steps():
    schedule = StepSchedule(40)
    assert [schedule.progress(step) for step in (0, 10, 39, 40, 41)] == [0.0, 0.25, 0.975, 1.0, 1.0]
    assert schedule.steps == 40
    assert schedule.replans == []


def test_a_bend_spreads_what_is_left_over_the_new_steps():
    schedule = StepSchedule(100)
    schedule.replan(50, 75)  # half is done; the other half in 25 steps
    schedule.replan(60, 64)  # 0.5 + 10/50 = 0.7 is done; 0.3 in 4 steps
    assert schedule.steps == 64
    found = [schedule.progress(step) for step in (50, 55, 60, 62, 64)]
    assert found == pytest.approx([0.5, 0.6, 0.7, 0.85, 1.0])
    assert StepSchedule(100, schedule.replans).progress(62) == schedule.progress(62)


def test_a_bend_changes_nothing_before_it():
    schedule = StepSchedule(100)
    before = [schedule.progress(step) for step in range(51)]
    schedule.replan(50, 500)
    assert [schedule.progress(step) for step in range(51)] == before


def test_parts_are_crossed_where_they_end():
    assert [parts_done(share, 10) for share in (0.0, 0.09, 0.1, 0.3, 0.30000000000000004, 1.0)] == [0, 0, 1, 3, 3, 10]


TRAINING = Training(
    model=ViTConfig(width=16, depth=1, heads=2, mlp_width=16, patch=4, image_size=(8, 8), classes=2),
    preprocess=Preprocess(size=(8, 8)),
    augment=Augment(),
    optimizer=Optimizer(),
)
STAGES = ((0.6, 0.5), (0.9, 0.7), (1.0, 1.0))
"""Up to which fraction of the training, seconds of a step on the usual machine."""
ENDING = 10.0
RESERVED = Reserved(measuring=6.0, evaluation=3.0, all_evaluations=1000.0, step=0.5)


def usual(progress):
    return 1.0


@dataclass
class Machine:
    """A training on a clock that only its steps, evaluations and stalls move."""

    seconds: float = 300.0  # the budget
    slowness: object = usual  # of steps, by progress
    evaluation_slowness: object = usual  # of the validation and test images and of writing, by progress
    stalls: tuple = ()  # pairs: after this fraction of the training, nothing is done for so many seconds
    guess: float = 1.0  # the first guess at a step, as a part of what it takes
    steps: object = None  # seconds of a step, by its number; None for those of the stages
    warm_up: float = 0.0  # seconds that the first step takes longer

    def __post_init__(self):
        self.time, self.written, self.evaluations = 0.0, 0, 0
        objective = SimpleNamespace(
            stages=tuple(end for end, _ in STAGES),
            keep_fraction=lambda progress: next(cost for end, cost in STAGES if progress < end),
        )
        self.training = SimpleNamespace(objective=objective, model=None, evaluations=5, probe=False)

    def now(self):
        return self.time

    def writing_if(self, slowness):
        return 4.0 * min(3.0, max(1.0, slowness))

    def write(self):
        self.written += 1

    def evaluate(self, progress):
        began = self.time
        self.time += RESERVED.evaluation * self.evaluation_slowness(progress)
        self.evaluations += 1
        return self.time - began

    def run(self, monkeypatch):
        """Until the last step; the time when all is done."""
        monkeypatch.setattr("vitreous.training.deadline.count_flops", lambda model, cost: cost)
        steps = max(20, int((self.seconds - ENDING) / (self.guess * 0.57)))
        self.schedule, stalls = StepSchedule(steps), list(self.stalls)
        replanner = Replanner(self.schedule, self.training, RESERVED, self, self.write)
        step = 0
        while step < self.schedule.steps:
            before = self.schedule.progress(step)
            cost = next(seconds for end, seconds in STAGES if before < end) if self.steps is None else self.steps(step)
            self.time += self.slowness(before) * cost + (0.0 if step else self.warm_up)
            step += 1
            while stalls and self.schedule.progress(step) >= stalls[0][0]:
                self.time += stalls.pop(0)[1]
            replanner.check(step)
            after = self.schedule.progress(step)
            if parts_done(after, 5) > parts_done(before, 5):
                replanner.evaluated(self.evaluate(before))
        self.taken = step
        return self.time + ENDING * self.evaluation_slowness(1.0)


FITTING = (300 - ENDING - 5 * 3) / 0.57  # steps on the usual machine: 0.6 * 0.5 + 0.3 * 0.7 + 0.1 * 1.0 seconds each


def later(before, after, at=0.5):
    return lambda progress: before if progress < at else after


def test_it_ends_in_time_and_uses_the_time_on_any_machine(subtests, monkeypatch):
    machines = {
        "as guessed": Machine(),
        "faster than guessed": Machine(guess=3.0),
        "slower than guessed": Machine(guess=0.3),
        "half as fast": Machine(slowness=lambda progress: 2.0),
        "three times slower later": Machine(slowness=later(1.0, 3.0), evaluation_slowness=later(1.0, 3.0)),
        "faster later": Machine(slowness=later(3.0, 1.0), evaluation_slowness=later(3.0, 1.0)),
        "slower evaluations": Machine(evaluation_slowness=lambda progress: 2.0),
        "slower at the end": Machine(slowness=later(1.0, 2.0, at=0.9)),
        "a first step that warms up": Machine(warm_up=20.0),
        "steps by turns": Machine(steps=lambda step: 1.1 if step % 2 else 0.1),
        "a minute": Machine(seconds=60.0),
        "an hour": Machine(seconds=3600.0),
        "steps of ten seconds": Machine(slowness=lambda progress: 20.0, seconds=600.0),
    }
    for name, machine in machines.items():
        with subtests.test(name):
            ended = machine.run(monkeypatch)
            assert 0.9 * machine.seconds < ended < 1.02 * machine.seconds
            assert machine.written == len(machine.schedule.replans)
            assert machine.schedule.progress(machine.taken) == 1.0


def test_two_runs_on_a_noisy_machine_come_to_about_as_many_steps(monkeypatch):
    """However lucky the first moments: 1,984 and 8,384 images were seen of the same ones in the same time."""
    taken = []
    for seed in range(6):
        noise = random.Random(seed)
        machine = Machine(
            seconds=60.0,
            guess=noise.choice((0.3, 1.0, 3.0)),
            slowness=lambda _, noise=noise: noise.lognormvariate(0, 0.5),
        )
        assert machine.run(monkeypatch) < 63
        taken.append(machine.taken)
    assert max(taken) < 1.5 * min(taken)


def test_time_that_a_stall_has_left_is_used(subtests, monkeypatch):
    """Steps for what is left of the time, however slow the machine seemed for a moment."""
    for fraction, seconds in product((0.02, 0.2, 0.5, 0.7), (30, 60, 120)):
        with subtests.test(fraction=fraction, seconds=seconds):
            machine = Machine(stalls=((fraction, seconds),))
            assert 270 < machine.run(monkeypatch) < 306
            assert machine.taken > 0.85 * FITTING * (300 - 25 - seconds) / (300 - 25)


def test_past_the_deadline_it_ends_at_once(monkeypatch):
    machine = Machine(slowness=later(1.0, 200.0))
    machine.run(monkeypatch)
    step, steps = machine.schedule.replans[-1]
    assert (step, steps) == (machine.taken, machine.taken)


def test_no_step_is_begun_that_would_not_end_in_time(monkeypatch):
    machine = Machine(seconds=90.0, slowness=lambda progress: 50.0)  # steps of 25 s, and 20 were guessed
    assert machine.run(monkeypatch) < 90
    assert machine.taken >= 1


def test_measuring_keeps_the_time_that_it_was_promised(monkeypatch):
    """Where each image takes twice as long as was thought, steps make room for all of them."""
    even, slow = Machine(seconds=120.0), Machine(seconds=120.0, evaluation_slowness=lambda progress: 2.0)
    assert slow.run(monkeypatch) < 123
    even.run(monkeypatch)
    assert slow.taken < even.taken


def test_steps_and_evaluations_fill_the_time():
    def plan(seconds, probe=False, **fields):
        deadline = SimpleNamespace(seconds=seconds, now=lambda: 10.0, writing=3.0)
        reserved = {"measuring": 2.0, "evaluation": 2.0, "all_evaluations": 20.0, "step": 1.0, **fields}
        found, steps = plan_steps(TRAINING, Reserved(**reserved), deadline)
        return found.evaluations, steps

    assert plan(115) == (10, 77)  # 0.97 of 100 s, less ten evaluations
    assert plan(115, all_evaluations=7.0)[0] == 3
    assert plan(115, all_evaluations=7.0, fixed=True) == (10, 77)  # as many as asked for, whatever they take
    assert plan(15 + 20, min_steps=10)[1] >= 10
    assert plan(15 + 10, min_steps=10)[1] == 0  # a good start: too few steps are none
    assert [plan(seconds)[1] for seconds in (0.1, 15.0, 16.0)] == [1, 1, 1]  # from nothing at least one
