"""Two processes whose clocks differ plan the same: what depends on a clock is decided by the main one."""

import os

import pytest

from support.greys import draw_images, make_weights
from support.together import two_processes


def fit_with_another_clock(place):
    """A fine-tuning with a budget, in which each process would measure another time for itself."""
    import vitreous.training.image_plan
    import vitreous.training.measuring as room
    from vitreous import fit
    from vitreous.training import labelled

    seconds = 1e-6 if os.environ["RANK"] == "0" else 10.0
    room.seconds_per_image = lambda *_: seconds
    labelled.inference_batch = lambda config: 2
    vitreous.training.image_plan.TIMING_SECONDS = 0.0
    fit(place / "photos", weights=place / "bundle", budget="8s", out=place / "run", workers=0, device="cpu")


@pytest.mark.slow
def test_processes_that_measure_differently_look_at_the_same_images(tmp_path):
    draw_images(tmp_path / "photos", count=40)
    make_weights(tmp_path / "bundle")
    assert two_processes(fit_with_another_clock, tmp_path) == [0, 0]
    assert (tmp_path / "run/result.json").exists()
