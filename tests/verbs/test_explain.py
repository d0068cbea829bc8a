"""Explanations lie on the image that a person gave, and mistakes are told in a sentence."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from support.colours import make_bundle, make_images
from support.known_model import bright_model
from support.tiny_models import LABELS, preprocess_for, random_model
from vitreous import Model, Trace, UserError, load, write_walkthrough
from vitreous.config.data import Preprocess
from vitreous.data.augment import eval_view, normalise
from vitreous.data.decode import ImageError, open_image
from vitreous.explain import explanation
from vitreous.explain.methods import Maps
from vitreous.explain.overlay import CAPTION, GAP, colour_levels, overlay
from vitreous.explain.patch_geometry import PatchGeometry
from vitreous.explain.request import EXPLANATION_METHODS
from vitreous.verbs.explain import explain
from vitreous.verbs.predict import predict
from vitreous.weights.bundle import Bundle, save_bundle

TURNS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    6: Image.Transpose.ROTATE_270,
    8: Image.Transpose.ROTATE_90,
}


def bright_bundle(size=(16, 24), **changes):
    return Bundle(bright_model(size, **changes), Preprocess(size=size, interpolation="nearest"), ("a", "b"))


def image_with_light(size, box):
    """A dark image (height, width) with a bright box: left, top, right, bottom."""
    pixels = np.full((*size, 3), 40, np.uint8)
    left, top, right, bottom = box
    pixels[top:bottom, left:right] = 220
    return Image.fromarray(pixels)


BOXES = {
    "same shape": ((32, 48), (16, 8, 24, 16)),
    "wide": ((32, 64), (24, 8, 32, 16)),
    "tall": ((64, 48), (16, 24, 24, 32)),
    "same size": ((16, 24), (8, 4, 12, 8)),
}


def test_the_map_lies_on_what_the_model_looked_at(subtests):
    """The bright box is one patch of the input, wherever the crop puts it; the map is highest in its middle."""
    for name, (size, box) in BOXES.items():
        for registers in (0, 2):
            with subtests.test(name, registers=registers):
                found = Model(bright_bundle(registers=registers)).explain(
                    image_with_light(size, box), method="attention"
                )
                assert found.map.shape == size
                assert np.count_nonzero(found.maps) == 1
                assert found.maps.max() == pytest.approx(1)
                left, top, right, bottom = box
                inside = found.map[top:bottom, left:right]
                assert found.map.max() == inside.max() > 0.7
                rows, columns = np.nonzero(found.map > 0.5)
                assert (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1) == (top, bottom, left, right)
                assert not found.map[~found.geometry.seen()].any()


def test_an_image_turned_by_its_camera_is_explained_upright(tmp_path, subtests):
    """Stored lying, shown standing: map and overlay are those of the standing image."""
    upright = image_with_light((64, 48), (16, 24, 24, 32))
    bundle = bright_bundle()
    expected = Model(bundle).explain(upright, method="attention")
    back = {
        Image.Transpose.ROTATE_270: Image.Transpose.ROTATE_90,
        Image.Transpose.ROTATE_90: Image.Transpose.ROTATE_270,
    }
    for orientation, turn in TURNS.items():
        with subtests.test(orientation=orientation):
            stored = upright if turn is None else upright.transpose(back.get(turn, turn))
            exif = Image.Exif()
            exif[0x0112] = orientation
            stored.save(tmp_path / "camera.png", exif=exif)
            found = Model(bundle).explain(tmp_path / "camera.png", method="attention")
            assert found.image.size == (48, 64)
            np.testing.assert_array_equal(found.map, expected.map)
            np.testing.assert_array_equal(np.asarray(found.overlay()), np.asarray(expected.overlay()))
            assert found.map[28, 20] == found.map.max()


@pytest.mark.parametrize("kind", ["turned", "transparent", "16 bits"])
def test_a_image_that_pillow_opened_is_explained_as_its_file_is(tmp_path, kind):
    path = tmp_path / "x.png"
    light = image_with_light((64, 48), (16, 24, 24, 32))
    if kind == "turned":
        exif = Image.Exif()
        exif[0x0112] = 6
        light.save(path, exif=exif)
    elif kind == "transparent":
        clear = light.convert("RGBA")
        clear.putalpha(Image.fromarray(np.asarray(light)[:, :, 0] // 220 * 255))
        clear.save(path)
    else:
        Image.fromarray(np.asarray(light)[:, :, 0].astype(np.uint16) * 257).save(path)
    bundle = bright_bundle()
    expected = Model(bundle).explain(path, method="attention")
    with Image.open(path) as opened:
        before = (opened.mode, opened.size, opened.tobytes())
        found = Model(bundle).explain(opened, method="attention")
        assert (opened.mode, opened.size, opened.tobytes()) == before, "the person's own image stays as it is"
    np.testing.assert_array_equal(np.asarray(found.image), np.asarray(expected.image))
    np.testing.assert_array_equal(found.map, expected.map)
    again = Model(bundle).explain(open_image(path), method="attention")
    np.testing.assert_array_equal(again.map, expected.map, err_msg="turned once, not twice")


def test_an_opened_image_that_is_cut_short_is_told(tmp_path):
    image_with_light((64, 48), (16, 24, 24, 32)).save(tmp_path / "x.png")
    (tmp_path / "x.png").write_bytes((tmp_path / "x.png").read_bytes()[:80])
    with Image.open(tmp_path / "x.png") as opened, pytest.raises(ImageError):
        Model(bright_bundle()).explain(opened)


def test_an_overlay_shows_the_whole_image_and_frames_what_was_seen():
    found = Model(bright_bundle()).explain(image_with_light((32, 64), (24, 8, 32, 16)), method="attention")
    pixels = np.asarray(found.overlay()).astype(int)
    assert pixels.shape == (32, 64, 3)
    assert pixels[12, 28].min() < pixels[12, 28].max() - 30, "coloured"
    left, top, right, bottom = (round(side) for side in found.geometry.box)
    assert (left, top, right, bottom) == (8, 0, 56, 32)
    assert pixels[25, left + 3].max() > pixels[25, left + 3].min() + 20, "what was seen is coloured"
    assert pixels[25, 3].tolist() == [30, 30, 30], "the rest is grey, at three quarters of its 40"
    assert (pixels[:, [left - 1, right]] == 255).all(), "a white frame lies around"
    assert (pixels[25, [left - 2, right + 1]] == 30).all(), "and is thin"


def test_a_few_attention_sinks_do_not_take_the_whole_scale():
    """Four of 196 patches with a hundred times as much leave the others their colours."""
    map = np.ones((14, 14), np.float32)
    map[5:9, 5:9] = np.linspace(2, 10, 16).reshape(4, 4)
    map[[0, 0, 13, 13], [0, 13, 0, 13]] = 1000
    levels = colour_levels(map)
    assert levels[1, 1] == 0
    assert levels[0, 0] == levels[13, 13] == 255
    assert np.diff(levels[5:9, 5:9].ravel().astype(int)).min() >= 0
    assert levels[6, 6] > 60
    assert levels[5:9, 5:9].max() > 200


def test_a_grid_is_drawn_at_the_size_that_it_has(monkeypatch):
    """Of a large photograph each panel would else cost as much as an overlay of it; all are where they belong."""
    light = image_with_light((640, 1280), (480, 160, 640, 320))
    found = Model(bright_bundle()).explain(light, method="attention", head="all")
    drawn = []

    def watched(image, *rest):
        drawn.append(image.size)
        return overlay(image, *rest)

    monkeypatch.setattr(explanation, "overlay", watched)
    grid = found.grid()
    assert drawn == [(320, 160)] * 2
    whole = np.asarray(found.overlay().resize((320, 160))).astype(int)
    panel = np.asarray(grid)[GAP + CAPTION :, GAP:][:160, :320].astype(int)
    assert np.abs(panel - whole).mean() < 3


def test_a_map_of_a_single_small_patch_glows():
    """One patch of 400 has less than the half per cent that is cut off."""
    map = np.zeros((100, 100), np.float32)
    map[50:55, 50:55] = 0.01
    image = Image.new("RGB", (100, 100), "grey")
    for geometry in (None, PatchGeometry((100, 100), (0, 0, 100, 100), (20, 20), (5, 5))):
        pixels = np.asarray(overlay(image, map, geometry)).astype(int)
        assert pixels[52, 52].sum() > pixels[10, 10].sum() + 100
    even = np.asarray(overlay(image, np.full((100, 100), 3, np.float32)))
    assert len(np.unique(even.reshape(-1, 3), axis=0)) == 1


def test_a_query_shows_what_that_place_attends_to():
    model = random_model()
    bundle = Bundle(model, Preprocess(size=(12, 16)), LABELS)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 40, 3)).astype(np.uint8))
    found = Model(bundle).explain(image, query=(4 + 8 * 1.5, 8 * 2.5))  # seen: columns 4 to 36; a patch is 8 pixels
    assert found.method == "attention"
    trace = Trace([-1])
    with torch.no_grad():
        model(normalise(eval_view(image, bundle.preprocess)[None], bundle.preprocess), trace=trace)
    expected = trace.attention[1][0, :, 1 + 2 * 4 + 1, 1:].mean(0).reshape(3, 4)
    np.testing.assert_allclose(found.maps[0, 0], expected, atol=1e-6)
    ring = np.asarray(found.overlay())[20, 19]  # three pixels beside the place
    assert ring.tolist() == [255, 255, 255]


def test_every_method_layer_and_head(tmp_path):
    model = random_model(depth=3)
    bundle = Bundle(model, preprocess_for(model), LABELS)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50, 3)).astype(np.uint8))
    Image.fromarray(np.asarray(image)).save(tmp_path / "x.png")
    predicted = predict(bundle, [tmp_path / "x.png"])[0]
    for method in EXPLANATION_METHODS:
        found = Model(bundle).explain(tmp_path / "x.png", method=method)
        assert found.map.shape == (30, 50)
        assert found.label == predicted.label
        assert found.score == pytest.approx(predicted.score, abs=1e-5)
        assert (found.map >= 0).all()
    assert Model(bundle).explain(image).method == "relevance"
    everything = Model(bundle).explain(image, method="attention", layer="all", head="all")
    assert everything.maps.shape == (3, 4, 3, 4)
    one = Model(bundle).explain(image, method="attention", layer=1, head=2)
    np.testing.assert_allclose(one.maps[0, 0], everything.maps[1, 2], atol=1e-6)
    assert (one.layers, one.heads) == ((1,), (2,))
    assert Model(bundle).explain(image, method="gradcam", layer="all").layers == (0, 1, 2)
    assert Model(bundle).explain(image, method="relevance", layer="all").layers == (0, 1, 2)
    assert Model(bundle).explain(image, method="attention", layer=-1, head=-1).heads == (3,)
    grid = everything.grid()
    assert grid.width > 4 * 50
    assert grid.height > 3 * 30


def test_another_class_is_explained_when_named():
    model = random_model()
    bundle = Bundle(model, preprocess_for(model), LABELS)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50, 3)).astype(np.uint8))
    maps = {label: Model(bundle).explain(image, target=label) for label in LABELS}
    assert all(found.label == label for label, found in maps.items())
    assert sum(found.score for found in maps.values()) == pytest.approx(1, abs=1e-5)
    assert not np.allclose(maps["ape"].maps, maps["bee"].maps)


VARIANTS = [
    {"pool": "mean", "class_token": False},
    {"pool": "attention", "class_token": False},
    {"pool": "class+mean"},
    {"distilled": True},
    {"channels": 1},
    {"pad": True, "image_size": (11, 14)},
    {"registers": 4, "position_scope": "patches"},
]


def test_every_kind_of_vit(subtests):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50, 3)).astype(np.uint8))
    for changes in VARIANTS:
        model = random_model(**changes)
        bundle = Bundle(model, preprocess_for(model), LABELS)
        for method in EXPLANATION_METHODS:
            with subtests.test(method, **changes):
                found = Model(bundle).explain(image, method=method)
                assert found.maps.shape[2:] == model.config.grid
                assert found.map.max() > 0 or method in ("gradcam", "occlusion"), "these may find nothing that helps"
                assert found.overlay().size == (50, 30)


def test_a_large_photograph_is_explained_at_its_own_size(tmp_path):
    """Prediction decodes it smaller; the map lies on all of its pixels, and the answer is the prediction's."""
    bundle = load(make_bundle(tmp_path / "b")).bundle
    noise = np.random.default_rng(0).integers(0, 100, (20, 30, 3)).astype(np.uint8)
    noise[:, :, 0] += 120
    Image.fromarray(noise).resize((600, 400)).save(tmp_path / "large.jpg")
    found = Model(bundle).explain(tmp_path / "large.jpg")
    assert found.map.shape == (400, 600)
    assert (found.label, found.score) == (
        predict(bundle, [tmp_path / "large.jpg"])[0].label,
        pytest.approx(predict(bundle, [tmp_path / "large.jpg"])[0].score, abs=1e-6),
    )


def test_the_notebooks_side(tmp_path):
    make_images(tmp_path / "p", count=1)
    model = load(make_bundle(tmp_path / "b"))
    found = model.explain(tmp_path / "p" / "red" / "0.png", method="attention")
    assert found.label == "red"
    found.save(tmp_path / "seen.png")
    with Image.open(tmp_path / "seen.png") as seen:  # 24 pixels wide, and 9 times 24 are still no more than 224
        np.testing.assert_array_equal(np.asarray(seen), np.asarray(found.overlay()).repeat(9, axis=0).repeat(9, axis=1))
    for name in ("seen.xyz", "seen"):
        with pytest.raises(UserError, match=name):
            found.save(tmp_path / name)


def test_an_explanation_shows_itself_in_a_notebook(tmp_path):
    bundle = Bundle(bright_model((16, 24)), Preprocess(size=(16, 24)), ("<b>a</b>", "b"))
    found = Model(bundle).explain(image_with_light((700, 1400), (480, 160, 640, 320)), target="<b>a</b>")
    shown = found._repr_html_()
    image = base64.b64decode(re.search(r'src="data:image/png;base64,([^"]+)"', shown).group(1))
    with Image.open(io.BytesIO(image)) as drawn:
        np.testing.assert_array_equal(np.asarray(drawn), np.asarray(found.overlay(480)))
    assert f"&lt;b&gt;a&lt;/b&gt; {found.score:.1%}, relevance" in shown
    assert "<b>" not in shown


def test_an_overlay_replaces_an_overlay_and_never_the_image(tmp_path, subtests):
    model = load(make_bundle(tmp_path / "b"))
    for kind in ("png", "jpg", "webp", "tiff"):
        with subtests.test(kind):
            image, out = tmp_path / f"cat.{kind}", tmp_path / f"seen.{kind}"
            Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8)).save(image)
            before = image.read_bytes()
            found = model.explain(image)
            for _ in range(2):
                found.save(out)
            with pytest.raises(UserError, match=f"cat.{kind}: "):
                found.save(image)
            assert image.read_bytes() == before
            with Image.open(out) as seen:
                assert seen.size == (120, 90)


def test_it_is_computed_on_the_device_that_was_named(tmp_path, monkeypatch):
    """The device "meta" stands for an accelerator, which this machine need not have."""
    make_images(tmp_path / "p", count=1)
    named, devices = [], []

    def find(name):
        named.append(name)
        return torch.device("meta")

    def record(model, images, method, **asked):
        devices.append((model.device.type, images.device.type))
        return Maps((0,), torch.ones(1, 1, 1, 2, 2), torch.zeros(1, 3))

    monkeypatch.setattr("vitreous.distributed.world.find_device", find)
    monkeypatch.setattr(explanation, "compute_maps", record)
    found = list(explain(make_bundle(tmp_path / "b"), tmp_path / "p", device="cuda", out=None))
    assert named == ["cuda"]
    assert devices == [("meta", "meta")] * len(found)


def test_images_that_cannot_be_read_do_not_stop_the_others(tmp_path):
    make_images(tmp_path / "p", count=1)
    (tmp_path / "p" / "green" / "bad.png").write_text("text")
    found = list(explain(make_bundle(tmp_path / "b"), tmp_path / "p", out=None))
    assert [isinstance(one, ImageError) for one in found] == [False, False, True, False]


def test_mistakes(tmp_path, subtests):
    model = random_model()
    bundle = Bundle(model, preprocess_for(model), LABELS)
    headless = random_model(classes=0)
    features = Bundle(headless, preprocess_for(headless), ())
    image = Image.new("RGB", (40, 30))
    assert Model(features).explain(image).method == "attention"
    assert Model(features).explain(image).label is None
    for says, given, options in (
        ("target class 'dug': .*5 .*dog", bundle, {"target": "dug"}),
        ("target class 'dog'", features, {"target": "dog"}),
        ("method relevance", features, {"method": "relevance"}),
        ("method='magic': .*attention", bundle, {"method": "magic"}),
        (r"layer 2: .*\b0\b.*\b1\b.*-2 .*-1\b", bundle, {"layer": 2}),
        ("layer -3", bundle, {"layer": -3, "method": "rollout"}),
        ("layer 1: .*occlusion", bundle, {"layer": 1, "method": "occlusion"}),
        (r"head 4: .*\b0\b.*\b3\b", bundle, {"head": 4, "method": "attention"}),
        ("head 1: .*rollout", bundle, {"head": 1, "method": "rollout"}),
        ("query: .*relevance", bundle, {"query": (1, 1), "method": "relevance"}),
        ("target class: .*attention", bundle, {"target": "dog", "method": "attention"}),
        ("target class: .*attention", bundle, {"target": "dog", "query": (20, 15)}),
        ("target class: .*rollout", bundle, {"target": "dog", "method": "rollout"}),
        (r"query 50,1: .*\b40\b.*\b30\b", bundle, {"query": (50, 1)}),
        ("query 39,29", bundle, {"query": (39, 29)}),
    ):
        with subtests.test(says, **options), pytest.raises(UserError, match=says):
            Model(given).explain(image, **options)
    with pytest.raises(UserError, match=r"none\.png"):
        Model(bundle).explain(tmp_path / "none.png")
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    for method in EXPLANATION_METHODS:
        with subtests.test(method), pytest.raises(UserError):
            Model(bundle).explain(image, method=method)
    image.save(tmp_path / "x.png")
    with pytest.raises(UserError):
        write_walkthrough(bundle, tmp_path / "x.png", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_arrays_are_plain_numbers(tmp_path):
    found = Model(bright_bundle()).explain(image_with_light((32, 64), (24, 8, 32, 16)), method="attention", head="all")
    np.savez(tmp_path / "a.npz", **found.arrays())
    with np.load(tmp_path / "a.npz") as kept:
        assert kept["map"].shape == (32, 64)
        assert kept["maps"].shape == (1, 2, 4, 6)
        assert kept["heads"].tolist() == [0, 1]
        assert kept["box"].tolist() == [8, 0, 56, 32]


def test_a_bundle_on_disk_is_opened(tmp_path):
    model = random_model()
    saved = save_bundle(tmp_path / "b", model, preprocess_for(model), LABELS)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3)).astype(np.uint8))
    found = load(saved).explain(image, method="rollout")
    expected = Model(Bundle(model, preprocess_for(model), LABELS)).explain(image, method="rollout")
    assert (found.label, found.score) == (expected.label, expected.score)
    np.testing.assert_array_equal(found.map, expected.map)
