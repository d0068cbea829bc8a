"""The metrics by which a collapse shows, against their formulas, and the alarm's patience."""

import math
from itertools import cycle

import numpy as np
import pytest
import torch

from vitreous.objectives.collapse import ALARM_STEPS, AVERAGED_STEPS, Alarm, entropy, feature_std, information

HEALTHY = {"entropy": 0.6, "information": 0.4, "feature_std": 0.5, "centre": 1.0, "explained": 0.3}
ONE = {"entropy": 0.001, "information": 0.0, "feature_std": 0.3, "centre": 0.0}
ANY = {"entropy": 0.999, "information": 0.001, "feature_std": 0.3, "centre": 0.1}
ALIKE = {"feature_std": 0.001}
NOTHING = {"feature_std": 0.3, "explained": 0.0}


def hear(*stretches):
    """The alarm and its sentences by step, after stretches of (records, in turn, steps)."""
    alarm, said, step = Alarm(), {}, 0
    for records, count in stretches:
        turn = cycle([records] if isinstance(records, dict) else records)
        for _ in range(count):
            step += 1
            if (sentence := alarm.update({"step": step, "loss": 1.0, **next(turn)})) is not None:
                said[step] = sentence
            alarm.update({"step": step, "val_knn": 0.5})  # evaluations are no steps
    return alarm, said


def test_metrics_are_their_formulas():
    draw = np.random.default_rng(0)
    answers = draw.dirichlet(np.ones(7), size=5)
    each = -(answers * np.log(answers)).sum(axis=1)
    mean = answers.mean(axis=0)
    found = torch.from_numpy(answers)
    np.testing.assert_allclose(entropy(found).numpy(), each)
    assert information(found).item() == pytest.approx(-(mean * np.log(mean)).sum() - each.mean())
    features = draw.normal(size=(9, 4))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    assert feature_std(torch.from_numpy(features)) == pytest.approx(unit.std(axis=0).mean() * 2, rel=1e-6)


def test_extremes():
    one, every = torch.eye(8)[[3, 3, 3]], torch.full((3, 8), 1 / 8)
    assert information(one).item() == pytest.approx(0, abs=1e-6)
    assert information(every).item() == pytest.approx(0, abs=1e-6)
    assert information(torch.eye(8)).item() == pytest.approx(math.log(8))
    assert feature_std(torch.ones(5, 6)) == pytest.approx(0, abs=1e-6)
    assert feature_std(torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))) == pytest.approx(1, abs=0.02)


def test_a_slow_warm_up_is_no_collapse_but_nothing_learned_after_it_is():
    rising = [{**NOTHING, "learning_rate": step / 300} for step in range(1, 301)]
    _, said = hear((rising, 300))
    assert not said
    alarm, said = hear((rising, 300), ({**NOTHING, "learning_rate": 0.9}, ALARM_STEPS))
    assert list(said) == [300 + ALARM_STEPS]
    assert alarm.ringing


def test_advice_fits_how_answers_are_kept_apart():
    balanced = {name: value for name, value in ANY.items() if name != "centre"}
    assert "objective.sinkhorn_iterations=3" in hear((ANY, 2 * ALARM_STEPS))[0].sentences[0]
    assert "sinkhorn_iterations" not in hear((balanced, 2 * ALARM_STEPS))[0].sentences[0]


SIGNS = (
    (ONE, "0.1%"),  # the entropy, of ln K
    (ANY, "99.9%"),
    (ALIKE, "0.001"),  # the standard deviation of the features
    (NOTHING, "objective.mask"),  # what to change
)


def test_a_collapse_is_said_once_and_soon(subtests):
    for record, named in SIGNS:
        with subtests.test(named):
            alarm, said = hear((HEALTHY, 50), (record, 400))
            (step,) = said
            assert ALARM_STEPS <= step - 50 <= ALARM_STEPS + AVERAGED_STEPS < 200
            assert named in said[step]
            assert f"step {step - ALARM_STEPS + 1} " in said[step]
            assert alarm.ringing == alarm.sentences == tuple(said.values())


def test_a_lucky_batch_is_no_cure_and_hovering_about_the_threshold_is_no_health(subtests):
    for metric, low, above in (("information", 0.001, 0.03), ("feature_std", 0.01, 0.08), ("explained", 0.0, 0.015)):
        with subtests.test(metric=metric, low=low, above=above):
            for values in ([low] * 24 + [0.15], [low, above]):
                (step,) = hear((HEALTHY, 50), ([{**HEALTHY, metric: value} for value in values], 200))[1]
                assert step - 50 <= ALARM_STEPS + AVERAGED_STEPS + 1
            assert not hear(([{**HEALTHY, metric: value} for value in (above, 2 * above)], 400))[1]


def test_what_is_measured_now_and_then_is_heard_too():
    rare = [ALIKE] + [{}] * 9
    alarm, said = hear((rare, 200))
    assert list(said) == [ALARM_STEPS]
    assert alarm.ringing
    assert not hear(([{"feature_std": 0.3}] + [{}] * 9, 300))[1]
    assert not hear(({}, 300))[1]


def test_bad_moments_are_not_a_collapse_and_a_cure_is_heard():
    assert not hear((HEALTHY, 100), *[(ONE, ALARM_STEPS - 1), (HEALTHY, AVERAGED_STEPS)] * 4)[1]
    alarm, said = hear((ONE, 150), (HEALTHY, 5))
    assert len(said) == 1
    assert not alarm.ringing


def test_of_two_signs_the_one_that_is_still_there_rings():
    alarm, said = hear((ONE, 150), ({**ONE, **ALIKE}, 150), ({**ONE, "feature_std": 0.3}, 50))
    assert len(said) == 2
    assert "0.001" in alarm.sentences[-1]
    assert alarm.ringing == alarm.sentences[:1]
