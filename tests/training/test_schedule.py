"""A training's schedule: hand-computed bends, and a made-up machine whose clock the tests know."""

from __future__ import annotations

from itertools import product

import pytest

from vitreous.training.deadline import Replanner, StepTimes
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


def test_the_timetable_knows_its_stages():
    table = StepTimes(deadline=100, stages=((0.8, 1.0), (1.0, 3.0)), evaluations=5, evaluation=2, ending=0)
    assert table.step_seconds(0.0, 1.0) == pytest.approx(1.4)
    assert table.step_seconds(0.6, 1.0) == pytest.approx(2.0)  # half the steps at 1, half at 3
    assert table.step_seconds(0.9, 1.0) == pytest.approx(3.0)
    assert table.evaluation_seconds(0.5, 1.0) == 3 * 2


class FakeDeadline:
    """Steps take what the timetable says, times a slowness that may change."""

    def __init__(self, table, steps, slowness, stalls=()):
        """`stalls`: pairs, so many seconds in which nothing is done, after this share of the training."""
        self.now, self.table, self.slowness, self.stalls = 0.0, table, slowness, list(stalls)
        self.written = 0
        self.schedule = StepSchedule(steps)
        self.keeper = Replanner(self.schedule, table, lambda: self.now, self.write)

    def write(self):
        self.written += 1

    def run(self):
        """Until the last step; the time when all is done."""
        step = 0
        while step < self.schedule.steps:
            before, after = self.schedule.progress(step), self.schedule.progress(step + 1)
            cost = self.table.step_seconds(before, after) + self.table.evaluation_seconds(before, after)
            self.now += self.slowness(before) * cost
            while self.stalls and after >= self.stalls[0][0]:
                self.now += self.stalls.pop(0)[1]
            step += 1
            self.keeper.check(step)
        return self.now + self.slowness(1.0) * self.table.ending


TABLE = StepTimes(deadline=300.0, stages=((0.6, 0.5), (0.9, 0.7), (1.0, 1.0)), evaluations=5, evaluation=3, ending=10)
FITTING = int((300 - 10 - 5 * 3) / TABLE.step_seconds(0.0, 1.0))


SLOWNESS = {
    "faster": lambda progress: 0.7,
    "slower": lambda progress: 1.3,
    "much slower": lambda progress: 2.5,
    "slower later": lambda progress: 1.0 if progress < 0.5 else 2.0,
    "faster later": lambda progress: 2.0 if progress < 0.5 else 1.0,
}


def test_it_ends_in_time_on_a_machine_that_is_not_as_measured(subtests):
    for name, slowness in SLOWNESS.items():
        with subtests.test(name):
            machine = FakeDeadline(TABLE, FITTING, slowness)
            assert machine.run() == pytest.approx(300, rel=0.03)
            assert machine.written == len(machine.schedule.replans) > 0


def test_a_machine_as_measured_bends_nothing():
    machine = FakeDeadline(TABLE, FITTING, lambda progress: 1.0)
    assert machine.run() == pytest.approx(300, rel=0.01)
    assert machine.schedule.replans == []
    assert machine.written == 0


def test_a_machine_that_is_slow_at_the_end_is_noticed():
    machine = FakeDeadline(TABLE, FITTING, lambda progress: 1.0 if progress < 0.9 else 2.0)
    assert machine.run() == pytest.approx(300, rel=0.05)


def test_time_that_a_stall_has_left_is_used(subtests):
    """Steps for what is left of the time, however slow the machine seemed for a moment."""
    for share, seconds in product((0.02, 0.2, 0.5, 0.7), (30, 60)):
        with subtests.test(share=share, seconds=seconds):
            machine = FakeDeadline(TABLE, FITTING, lambda progress: 1.0, [(share, seconds)])
            assert machine.run() == pytest.approx(300, rel=0.03)
            assert machine.schedule.steps > 0.95 * FITTING * (300 - 10 - 15 - seconds) / (300 - 10 - 15)


def test_a_training_is_not_ended_by_one_long_stall():
    machine = FakeDeadline(TABLE, FITTING, lambda progress: 1.0, [(0.02, 120)])
    assert machine.run() == pytest.approx(300, rel=0.03)
    assert machine.schedule.steps > FITTING / 2


def test_past_the_deadline_it_ends_at_once():
    machine = FakeDeadline(TABLE, FITTING, lambda progress: 1.0 if progress < 0.5 else 200.0)
    machine.run()
    assert machine.schedule.progress(machine.schedule.steps) == 1.0
    late = [steps - step for step, steps in machine.schedule.replans]
    assert late[-1] == 1
