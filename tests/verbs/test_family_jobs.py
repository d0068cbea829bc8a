"""Every verb that asks a model, with a family that the package does not have: an answer, or one clear sentence."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from support import tiny_conv
from support.colours import COLOURS, make_images
from support.commands import run_command
from support.tiny_conv import FAMILY, TinyConvConfig, make_conv_bundle
from vitreous import (
    UserError,
    analyze,
    export_weights,
    import_weights,
    load,
    models,
    plot_weights,
    predict,
    probe,
    score_explanations,
    write_report,
    write_walkthrough,
)
from vitreous.config.data import Preprocess
from vitreous.model.network import Network, Outputs
from vitreous.verbs.evaluate import evaluate
from vitreous.weights.bundle import Bundle, load_bundle, save_bundle


@pytest.fixture(autouse=True)
def family(monkeypatch, tmp_path):
    tiny_conv.register(monkeypatch)
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("family")
    with pytest.MonkeyPatch.context() as patch:
        tiny_conv.register(patch)
        make_conv_bundle(place / "bundle")
    make_images(place / "data" / "train", count=6)
    make_images(place / "data" / "test", seed=50)
    return place


def test_it_predicts_and_is_evaluated(place):
    said = predict(place / "bundle", place / "data" / "test")
    assert [one.label for one in said] == [Path(one.path).parent.name for one in said]
    found = evaluate(place / "bundle", place / "data")
    assert (found.split, found.result.n, found.result.top1) == ("test", 12, 1.0)
    model = load(place / "bundle")
    assert model.network(torch.zeros(1, 3, 16, 16)).shape == (1, 3)
    with pytest.raises(UserError, match="vit: "):
        _ = model.vit


def test_its_features_are_probed_and_kept(place, tmp_path):
    found = probe(place / "bundle", place / "data", protocol="knn")
    assert (found.n, found.width, found.scores[0].accuracy) == (12, 8, 1.0)
    again = probe(place / "bundle", place / "data", protocol="knn")
    assert again.scores == found.scores
    assert len(list((tmp_path / "cache" / "computed" / "features").iterdir())) == 2
    changed = load_bundle(place / "bundle")
    changed.model.blocks[0][0].running_mean.add_(1.0)  # a buffer matters as a weight does
    probe(changed, place / "data", protocol="knn")
    assert len(list((tmp_path / "cache" / "computed" / "features").iterdir())) == 4


def test_it_is_explained_by_gradcam_on_the_images_own_pixels(place):
    image = place / "data" / "test" / "red" / "0.png"
    found = load(place / "bundle").explain(image)
    assert (found.method, found.layers, found.heads, found.label) == ("gradcam", (), (), "red")
    assert found.maps.shape == (1, 1, 8, 8)  # the stem halves 16 x 16
    assert found.map.shape == (20, 24)
    assert found.map[:, :2].max() == 0  # the crop of 20 x 24 leaves two columns out on either side
    assert found.map[:, 2:22].max() == pytest.approx(found.maps.max(), rel=0.2)
    found.overlay()
    blue = load(place / "bundle").explain(image, target="blue")
    assert (blue.label, blue.maps.shape) == ("blue", (1, 1, 8, 8))
    assert not (blue.maps == found.maps).all()


def test_the_command_line_explains_it(place, tmp_path):
    image = place / "data" / "test" / "red" / "0.png"
    assert run_command("explain", place / "bundle", image, "--out", tmp_path).status == 0
    assert run_command("explain", place / "bundle", image, "--method", "occlusion", "--out", tmp_path).status == 0
    assert sorted(file.name for file in tmp_path.glob("*.png")) == ["0-gradcam.png", "0-occlusion.png"]
    plotted = run_command("plot-weights", place / "bundle", "--out", tmp_path / "weights")
    assert plotted.status == 0
    assert re.search(r"^filters .* 8 .* 100%", plotted.stdout, re.M)
    assert sorted(file.name for file in (tmp_path / "weights").iterdir()) == ["filters.png", "filters.svg"]


def test_what_its_weights_look_like(place):
    found = plot_weights(place / "bundle", data=place / "data", out=None)
    assert list(found.plots()) == ["filters"]
    said = found.to_json()
    assert sum(said["filter_variance"]) == pytest.approx(1, abs=1e-3)
    assert {said[name] for name in ("position_similarity", "attention_distance", "even_distance")} == {None}


def test_its_report(place, tmp_path):
    path = write_report(place / "bundle", data=place / "data", out=tmp_path / "r.html")
    text = path.read_text(encoding="utf-8")
    assert "Tiny ConvNet" in text
    assert "Filters of the first layer" in text
    assert "Positions" not in text
    assert re.search(r"<dt>(<abbr [^>]*>)?Depth<", text)
    assert "Vision Transformer" not in text
    assert text.count('class="two"') == 3
    assert write_report(place / "bundle", out=tmp_path / "bare.html").exists()


class Blind(Network):
    """A network that neither attends nor has a feature map, nor a convolution."""

    def __init__(self, config, *, seed=0):
        super().__init__()
        self.config = config
        self.head = torch.nn.Linear(3, 3)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(3).flip(0))  # channels are red, green, blue; classes in alphabetical order
            self.head.bias.zero_()

    def outputs(self, images, *, keys=None):
        return Outputs(images.mean(dim=(2, 3)), self.head(images.mean(dim=(2, 3))))


def test_a_network_that_nothing_can_be_seen_in(place, tmp_path, monkeypatch):
    tiny_conv.register(monkeypatch, FAMILY._replace(network=Blind))
    path = save_bundle(tmp_path / "blind", Blind(TinyConvConfig()), Preprocess(size=(16, 16)), COLOURS)
    text = write_report(path, data=place / "data", out=tmp_path / "r.html").read_text(encoding="utf-8")
    assert text.count('class="two"') == 3
    assert "glow" not in text
    with pytest.raises(UserError, match="method gradcam: "):
        load(path).explain(place / "data" / "test" / "red" / "0.png")
    assert plot_weights(path, out=None).plots() == {}
    assert run_command("plot-weights", path, "--out", tmp_path / "weights").status == 0


def test_it_is_listed_with_its_cost():
    rows = {row.name: row for row in models()}
    row = rows["tiny-conv-16"]
    assert (row.family, row.image_size, row.width, row.tokens) == ("tiny-conv", (16, 16), None, None)
    assert row.parameters == 3 * 16 * 9 + 2 * (2 * 16 + 16 * 16 * 9 + 16) + 16 * 3 + 3
    assert rows["B/16"].family == "vit"
    (large,) = models(["tiny-conv-8"], image_size=64)
    assert large.image_size == (64, 64)
    assert "tiny-conv-8" in {row.name for row in models(image_size=17)}
    assert "tiny-conv-8" in run_command("models", "tiny-conv-8").stdout


def test_it_is_imported_as_it_is_and_exported_to_nobody(place, tmp_path):
    made = import_weights(place / "bundle", tmp_path / "copy", classes=5)
    assert made.description == "Tiny ConvNet of width 8, depth 2, 16, 5 classes"
    assert load_bundle(tmp_path / "copy").model.config == TinyConvConfig(classes=5)
    for to in ("google", "huggingface", "timm"):
        with pytest.raises(UserError, match=f"to={to!r}: .*'tiny-conv'"):
            export_weights(place / "bundle", tmp_path / "out.npz", to=to)


def test_what_only_a_vit_can_do_says_so(place, tmp_path):
    bundle, image = place / "bundle", place / "data" / "test" / "red" / "0.png"
    with pytest.raises(UserError, match="walkthrough: "):
        write_walkthrough(bundle, image, out=tmp_path / "s.html")
    with pytest.raises(UserError, match="analysis of "):
        analyze([bundle], data=place / "data", out=tmp_path / "a")
    with pytest.raises(UserError, match="scores of explanations: "):
        score_explanations(bundle, place / "data")


def test_a_image_in_memory_is_explained(place):
    bundle = load_bundle(place / "bundle")
    assert isinstance(bundle, Bundle)
    found = load(place / "bundle").explain(Image.new("RGB", (30, 20), (200, 20, 20)))
    assert found.label == "red"
