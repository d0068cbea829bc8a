"""Scores of explanations: right methods beat maps that look at nothing, and masks are read as they are meant."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from support.colours import make_bundle, make_images
from support.known_model import bright_model
from vitreous import UserError, score_explanations
from vitreous.callbacks import Callbacks
from vitreous.config.data import Preprocess
from vitreous.explain import score
from vitreous.explain.methods import Maps
from vitreous.explain.request import EXPLANATION_METHODS
from vitreous.weights.bundle import Bundle

ROWS = ["even", "centre", "centre of what is seen"]


@pytest.fixture
def lights(tmp_path):
    """Dark images of 16x32 with a bright box, and masks of the boxes; the model sees columns 4 to 28."""
    boxes = [(8, 4), (16, 8), (24, 0), (4, 12)]  # left, top
    for i, (left, top) in enumerate(boxes):
        for folder, low, high in (("data", 40, 220), ("masks", 0, 255)):
            pixels = np.full((16, 32), low, np.uint8)
            pixels[top : top + 4, left : left + 4] = high
            path = tmp_path / folder / "ab"[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return tmp_path


@pytest.fixture
def bundle():
    return Bundle(bright_model((16, 24)), Preprocess(size=(16, 24), interpolation="nearest"), ("a", "b"))


def test_a_map_that_is_known_gets_its_known_score(lights, bundle):
    found = score_explanations(bundle, lights / "data", methods=["attention"], masks=lights / "masks")
    assert found.images == 4
    assert [one.name for one in found.scores] == [*ROWS, "attention"]
    even, centre, seen, attention = found.scores
    assert (even.energy, even.pointing, even.iou) == pytest.approx((1 / 32,) * 3)
    assert attention.pointing == 1
    assert attention.iou > 0.9
    assert attention.energy > 3 * max(centre.energy, seen.energy)
    # Nothing reaches this model's answer, so taking patches away changes nothing.
    assert attention.deletion == attention.insertion == even.deletion == 0.5
    said = json.loads(json.dumps(found.to_json()))
    assert list(said["baselines"]) == ROWS
    assert set(said["methods"]["attention"]) == {"deletion", "insertion", "energy", "pointing", "iou", "seconds"} | {
        "intervals"
    }


@pytest.fixture
def answering(bundle):
    """The same, with an answer: class a by what the class token reads of a bright patch, and no answer without one."""
    model = bundle.model
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight[16, 0] = 1  # the first value is the brightness, sqrt(2) after the norm
        model.blocks[0].attn.proj.weight[2, 0] = 1
        model.head.weight[0, 2] = 1
    return bundle


SURE = 1 / (1 + np.exp(-(7**0.5)))
"""Class a's probability with the bright patch: the last norm makes sqrt(7) of the only channel of 8 that is not 0."""


def test_deletion_and_insertion_of_a_map_that_knows_what_counts(lights, answering):
    found = score_explanations(answering, lights / "data", methods=["attention", "relevance"])
    even, _, _, attention, relevance = found.scores
    for one in (attention, relevance):
        assert one.deletion == pytest.approx(0.5, abs=1e-5), "the patch that counts goes first"
        assert one.insertion == pytest.approx(SURE, abs=1e-4), "and comes first"
    assert 0.5 < even.deletion < SURE
    assert 0.5 < even.insertion < SURE


def test_a_map_that_tells_nothing_apart_is_worth_as_much_as_none(lights, answering, monkeypatch):
    """Its patches come in the order of `even`, not row by row."""

    def nothing(model, images, method, *, targets):
        return Maps((), torch.zeros(len(images), 1, 1, *model.config.grid), model(images))

    monkeypatch.setattr(score, "compute_maps", nothing)
    even, _, _, gradcam = score_explanations(answering, lights / "data", methods=["gradcam"]).scores
    assert (gradcam.deletion, gradcam.insertion) == (even.deletion, even.insertion)


def test_images_come_to_the_device_of_the_model(lights, bundle):
    """The device "meta" stands for an accelerator."""

    class SeenError(Exception):
        pass

    def tell(module, args):
        raise SeenError(args[0].device.type)

    bundle.model.to("meta").register_forward_pre_hook(tell)
    with pytest.raises(SeenError, match="meta"):
        score_explanations(bundle, lights / "data", methods=["attention"])


def test_every_mean_has_its_interval(lights, bundle):
    found = score_explanations(bundle, lights / "data", methods=["attention"], masks=lights / "masks")
    for one in found.scores:
        assert list(one.intervals) == ["deletion", "insertion", "energy", "pointing", "iou"]
        for metric, (low, high) in one.intervals.items():
            assert low <= getattr(one, metric) + 1e-9
            assert getattr(one, metric) <= high + 1e-9
    again = score_explanations(bundle, lights / "data", methods=["attention"], masks=lights / "masks")
    assert [one.intervals for one in again.scores] == [one.intervals for one in found.scores]


def test_images_without_class_folders_are_scored(lights, bundle):
    found = score_explanations(bundle, lights / "data" / "a", methods=[], masks=lights / "masks" / "a")
    assert found.images == 2


def test_damaged_weights_are_told(lights, bundle):
    with torch.no_grad():
        bundle.model.head.weight.fill_(float("nan"))
    with pytest.raises(UserError):
        score_explanations(bundle, lights / "data", methods=["attention"])


def test_without_masks_only_what_needs_none(tmp_path):
    make_images(tmp_path / "p", count=1)
    found = score_explanations(make_bundle(tmp_path / "b"), tmp_path / "p")
    assert [one.name for one in found.scores] == [*ROWS, *EXPLANATION_METHODS]
    for one in found.scores:
        assert one.energy is one.pointing is one.iou is None
        assert 0 <= one.deletion <= 1
        assert 0 <= one.insertion <= 1
        assert (one.seconds is None) == (one.name in ROWS)


def test_a_trimap_counts_the_animal_and_its_outline(lights, bundle):
    for path in (lights / "masks").rglob("*.png"):
        mask = np.asarray(Image.open(path).convert("L")) > 0
        trimap = np.where(mask, 1, 2).astype(np.uint8)
        trimap[0, 0] = 3
        Image.fromarray(trimap).save(path)
    found = score_explanations(bundle, lights / "data", methods=[], masks=lights / "masks")
    assert found.scores[0].energy == pytest.approx(17 / 512)


def test_a_part_of_the_data_spread_evenly(lights, bundle):
    seen = []
    callbacks = Callbacks(progress=lambda *done: seen.append(done))
    found = score_explanations(bundle, lights / "data", methods=[], count=2, callbacks=callbacks)
    assert found.images == 2
    assert seen == [("scoring", 2, 2)]


def test_what_cannot_be_used_is_left_out_and_named(lights, bundle):
    (lights / "data" / "a" / "0.png").write_text("text")
    Image.new("L", (32, 16), 0).save(lights / "masks" / "b" / "1.png")
    cut = lights / "masks" / "a" / "2.png"
    cut.write_bytes(cut.read_bytes()[:-30])
    found = score_explanations(bundle, lights / "data", methods=[], masks=lights / "masks")
    assert found.images == 1
    assert {path.rpartition("/")[2] for path in found.left_out} == {"0.png", "1.png", "2.png"}
    assert {str(cut), str(lights / "masks" / "b" / "1.png")} <= set(found.left_out)


def test_mistakes(lights, bundle, tmp_path):
    assert score_explanations(bundle, lights / "data", methods=[], count=9).images == 4
    with pytest.raises(UserError, match=r"methods\[0\]='magic': .*attention"):
        score_explanations(bundle, lights / "data", methods=["magic"])
    last, told = lights / "masks" / "b" / "3.png", []
    Image.new("L", (30, 16), 1).save(last)
    with pytest.raises(UserError, match=r"3\.png: .*30x16.*32x16"):
        score_explanations(
            bundle,
            lights / "data",
            methods=[],
            masks=lights / "masks",
            callbacks=Callbacks(progress=lambda *done: told.append(done)),
        )
    Image.new("L", (16, 32), 1).save(last)
    with pytest.raises(UserError, match=r"3\.png: .*16x32.*32x16"):
        score_explanations(bundle, lights / "data", methods=[], masks=lights / "masks")
    assert told == [], "before the first image"
    (lights / "masks" / "b" / "1.png").unlink()
    with pytest.raises(UserError, match=r"1\.png: .*b/1\.png"):
        score_explanations(bundle, lights / "data", methods=[], masks=lights / "masks")
    for path in (lights / "data").rglob("*.png"):
        path.write_text("text")
    with pytest.raises(UserError, match=r"data/a/0\.png: .* can be read"):
        score_explanations(bundle, lights / "data", methods=[])


@pytest.mark.slow
def test_relevance_beats_maps_that_look_at_nothing_on_real_images(shared_data):
    """Six pets; the whole measurement is benchmarks/explain.py."""
    from vitreous.weights.source import open_weights

    bundle = open_weights(shared_data / "vit_ti16_augreg_in21k_ft_in1k.safetensors", "mean=0.5,std=0.5,crop=0.9")
    pets = shared_data / "pets"
    found = score_explanations(bundle, pets / "test", methods=["relevance"], masks=pets / "test_trimaps", count=6)
    *baselines, relevance = found.scores
    for nothing in baselines:
        assert relevance.energy > nothing.energy + 0.05
        assert relevance.pointing >= nothing.pointing
        assert relevance.deletion < nothing.deletion - 0.05
        assert relevance.insertion > nothing.insertion + 0.05
