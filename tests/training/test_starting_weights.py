"""What a training starts from where the person names no weights."""

import numpy as np
import pytest
from PIL import Image

import vitreous
from support.greys import make_weights
from vitreous.callbacks import Callbacks
from vitreous.data.opening import open_dataset
from vitreous.training.labelled import Labelled
from vitreous.training.request import FitRequest
from vitreous.training.start import are_photographs, local_runtime, starting_network
from vitreous.training.starting_weights import choose_weights
from vitreous.training.train import train
from vitreous.weights.bundle import weights_digest
from vitreous.weights.source import open_weights


def photographs(folder, side, count=8):
    """Images of two classes that differ by their colour."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(("red", "blue")):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 60, (side, side, 3), np.uint8)
            pixels[..., 2 * number] += 180
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def test_photographs_start_from_published_weights_and_tiny_images_do_not(tmp_path):
    large = open_dataset(photographs(tmp_path / "large", 80))
    tiny = open_dataset(photographs(tmp_path / "tiny", 32))
    assert are_photographs(large)
    assert not are_photographs(tiny)
    assert FitRequest("x").may_choose_weights
    for asked in ({"weights": "none"}, {"model": "Ti/16"}, {"recipe": "scratch"}, {"distill": "teacher"}):
        assert not FitRequest("x", **asked).may_choose_weights, asked


@pytest.mark.parametrize(
    ("images", "seconds", "device", "name"),
    [
        # forward passes of 2.5, 9.2 and 35 GFLOPs an image; 2e14 operations in an hour of two cores
        (2_590, 120, "cpu", "ti16"),  # 6.7e12 operations: 6.5e12 for Ti/16
        (2_590, 600, "cpu", "s16"),  # 3.3e13: 2.4e13 for S/16
        (2_590, 3600, "cpu", "b16"),  # 2e14: 9.1e13 for B/16
        (2_590, None, "cpu", "ti16"),
        (2_590, 120, "cuda", "s16"),  # 88 MB take 18 s at 5 MB/s, the 346 of B/16 more than a fifth of the time
        (2_590, 600, "cuda", "b16"),
        (10**9, 60, "cpu", "ti16"),  # the smallest, however little time there is
    ],
)
def test_the_largest_that_the_time_allows(images, seconds, device, name):
    assert choose_weights(images, seconds, device) == name


@pytest.mark.slow
def test_offline_it_trains_from_scratch_and_says_so(tmp_path):
    said = []
    data = photographs(tmp_path / "data", 80)
    run = vitreous.fit(data, epochs=0.1, out=tmp_path / "run", workers=0, callbacks=Callbacks(message=said.append))
    assert run.start is None
    assert any("vitreous import b16" in line for line in said)


@pytest.mark.slow
def test_the_chosen_weights_are_kept_and_used_again(tmp_path, monkeypatch):
    """Resumed, it needs no choice; the bundle says what it started from."""
    data = photographs(tmp_path / "data", 80)
    weights = make_weights(tmp_path / "w")
    monkeypatch.setattr("vitreous.training.labelled.open_chosen", lambda name, message: open_weights(weights))
    first = vitreous.fit(data, epochs=1, out=tmp_path / "run", workers=0)
    assert first.start == "b16"
    monkeypatch.setattr("vitreous.training.labelled.open_chosen", _never)
    again = vitreous.fit(data, epochs=1, out=tmp_path / "run", workers=0)
    assert again.start == "b16"
    assert vitreous.load(tmp_path / "run").bundle.info["request"]["weights"] == "b16"


def _never(*arguments):
    raise AssertionError("a finished run needs no weights")


def test_what_given_weights_would_refuse_means_a_new_model():
    for overrides in ({"model.pool": "mean"}, {"whiten": "false"}):
        assert not FitRequest("x", overrides=overrides).may_choose_weights
    assert FitRequest("x", overrides={"model.drop_path": "0.1", "ema": "0.9"}).may_choose_weights


@pytest.mark.slow
def test_weights_that_a_study_gives_are_used_again_before_the_first_checkpoint(tmp_path, monkeypatch):
    """A study that is killed between its plan and its first checkpoint goes on from the same weights."""
    data, given = open_dataset(photographs(tmp_path / "data", 32)), open_weights(make_weights(tmp_path / "w"))
    request = FitRequest(str(tmp_path / "data"), weights=str(tmp_path / "w"), epochs=1)
    bases = []

    def start(training, base):
        bases.append(None if base is None else weights_digest(base.model))
        return starting_network(training, base)

    def run():
        method = Labelled(data=lambda context: data, weights=given)
        return train(request, tmp_path / "run", local_runtime(0, "cpu", False), Callbacks(), method)

    def killed(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("vitreous.training.labelled.starting_network", start)
    with monkeypatch.context() as patch:
        patch.setattr("vitreous.training.train.Loop", killed)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert run().start == str(tmp_path / "w")
    assert bases == [weights_digest(given.model)] * 2
