"""A finished run that is asked for again: it is what the data, the weights and the request say now, or it says what
changed."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from support.commands import check_refused, run_command
from support.greys import draw_images, quick_fit, stop_after
from vitreous import UserError, fit
from vitreous.callbacks import Callbacks
from vitreous.data.batch import Batch
from vitreous.distributed.world import SINGLE_PROCESS
from vitreous.training.measuring import logits_in_time
from vitreous.weights.bundle import load_bundle

pytestmark = pytest.mark.usefixtures("no_page")


@pytest.fixture
def finished(images, weights, tmp_path):
    """(data, weights, run): a copy of the data, and a finished training on them."""
    data, run = shutil.copytree(images, tmp_path / "photos"), tmp_path / "run"
    assert quick_fit(data, weights, run).finished
    return data, weights, run


def encode_anew(path):
    """Other pixels of the same size, in another number of bytes."""
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(path)


def test_added_images_are_told(finished):
    data, weights, run = finished
    shutil.copy(data / "dark/0.png", data / "dark/more.png")
    with pytest.raises(UserError, match=r"25 train images.* 24 .*--overwrite.*--out"):
        quick_fit(data, weights, run)
    again = quick_fit(data, weights, run, overwrite=True)
    assert again.finished
    assert again.images > 21  # of 25, some are set aside
    assert quick_fit(data, weights, run) == again


def test_images_encoded_anew_under_their_names_are_told(finished, tmp_path):
    data, weights, run = finished
    begun = tmp_path / "begun"
    assert not quick_fit(data, weights, begun, callbacks=Callbacks(should_stop=stop_after(1))).finished
    encode_anew(data / "light/3.png")
    for place in (run, begun):
        with pytest.raises(UserError, match=rf"other train images.*{place}"):
            quick_fit(data, weights, place)


def test_a_damaged_bundle_is_told_and_a_lost_one_is_written_again(finished):
    data, weights, run = finished
    bits = (run / "bundle/model.safetensors").read_bytes()
    (run / "bundle/model.safetensors").write_bytes(bits[:-1])
    with pytest.raises(UserError, match=rf"model\.safetensors.*delete {run / 'bundle'}"):
        quick_fit(data, weights, run)
    shutil.rmtree(run / "bundle")
    said = []
    assert quick_fit(data, weights, run, callbacks=Callbacks(message=said.append)).finished
    assert any(str(run / "bundle") in sentence for sentence in said)
    load_bundle(run / "bundle")
    assert (run / "bundle/model.safetensors").read_bytes() == bits


def test_data_that_are_gone_leave_the_result(finished):
    data, weights, run = finished
    shutil.rmtree(data)
    said = []
    assert quick_fit(data, weights, run, callbacks=Callbacks(message=said.append)).finished
    assert any(str(data) in sentence for sentence in said)


def test_one_request_in_other_words_is_the_same(images, weights, tmp_path, monkeypatch):
    monkeypatch.chdir(images.parent)
    run, stopped = tmp_path / "run", Callbacks(should_stop=stop_after(0))
    ways = {"weights": weights, "out": run, "workers": 0}
    assert not fit(images, budget="60s", callbacks=stopped, **ways).finished
    said = []
    again = fit(images.name, budget="1m", **ways, callbacks=Callbacks(message=said.append, should_stop=lambda: True))
    assert not again.finished
    assert any("1m" in sentence and "steps" in sentence for sentence in said)  # what became of the budget


def test_the_default_run_folder_is_not_among_the_images(tmp_path, monkeypatch):
    draw_images(tmp_path / "photos")
    check_refused(run_command("fit", ".", "--epochs", "1", cwd=tmp_path / "photos"), "--out")
    assert sorted(path.name for path in (tmp_path / "photos").iterdir()) == ["dark", "light"]


def test_numbers_beyond_reason_are_refused_and_leave_nothing(images, tmp_path):
    check_refused(run_command("fit", images, "--budget", "999999999999999999d", cwd=tmp_path), "budget", "366d")
    check_refused(
        run_command("fit", images, "--epochs", "1", "--overrides", "batch_size=1000000000", cwd=tmp_path),
        "batch_size=1000000000",
    )
    assert not list(tmp_path.iterdir())


def test_an_unreadable_image_at_the_end_is_no_lack_of_time():
    """Six of seven can be read; all were tried."""

    class Rounds:
        source, batch_size, world = range(7), 4, SINGLE_PROCESS

        def plain_rounds(self, batch_size, order):
            for index in (torch.arange(4), torch.arange(4, 6)):
                yield Batch.of(torch.zeros(len(index), 1, 2, 2), index=index, targets=torch.zeros(len(index)).long())

    class Plenty:
        seconds, writing, seconds_per_image = 1000.0, 1.0, 0.1

        def now(self):
            return 1.0

        def writing_if(self, slowness):
            return slowness

    (logits, _), tried = logits_in_time(lambda images: images[:, 0, 0], Rounds(), Plenty())
    assert (len(logits), len(tried)) == (6, 7)


def test_a_result_shows_itself_in_a_notebook(finished):
    data, weights, run = finished
    assert str(run) in quick_fit(data, weights, run)._repr_html_()
