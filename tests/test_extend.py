"""What can be added without touching the package: a row of any table, from an objective to an explanation method.

`docs/extend.md` walks through them; its code is this file's.
"""

import inspect
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fastapi.testclient import TestClient
from PIL import Image
from safetensors.torch import load_file
from torchvision.models import VisionTransformer

import generate
import vitreous
from support.colours import COLOURS, make_bundle, make_images
from support.commands import check_refused, run_command
from support.extensions import (
    balanced_accuracy,
    conv_family,
    dark_verb,
    export_engine,
    gradient_method,
    grey_images,
    quadrant_objective,
    token_length,
    torchvision_format,
    tsv_format,
)
from support.killing import check_killed_and_resumed
from support.serving import opened
from vitreous.callbacks import Callbacks
from vitreous.config.server import ServerSettings
from vitreous.data.augment import normalise
from vitreous.data.batch import Batch, ViewBatch
from vitreous.data.formats import DATA_FORMATS
from vitreous.data.opening import open_data, open_every_image, open_images
from vitreous.data.view import Sample, make_view
from vitreous.evaluation.classify import METRICS, ClassificationResult
from vitreous.explain.analysis.bias_result import Bias
from vitreous.explain.analysis.depth_measures import DEPTH_MEASURES
from vitreous.explain.analysis.perturbations import PERTURBATIONS
from vitreous.explain.request import EXPLANATION_METHODS
from vitreous.inference.engines import ENGINES
from vitreous.model.family import FAMILIES
from vitreous.objectives.build import OBJECTIVES
from vitreous.server.app import make_app
from vitreous.studies.analysis import choose_images
from vitreous.training.recipes.pretrain import PRETRAINING
from vitreous.training.recipes.supervised import RECIPES
from vitreous.verbs import GROUPS
from vitreous.weights.formats import FORMATS
from vitreous.weights.source import open_weights

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """24x24 images, redder to the right and greener down, of one class without and one with a blue square."""
    rng = np.random.default_rng(0)
    ramp, root = np.arange(24) * 10, tmp_path_factory.mktemp("extend") / "photos"
    for number in range(40):
        pixels = rng.integers(0, 20, (24, 24, 3), dtype=np.uint8)
        pixels[:, :, 0] += ramp[None, :].astype(np.uint8)
        pixels[:, :, 1] += ramp[:, None].astype(np.uint8)
        if number % 2:
            pixels[13:22, 13:22, 2] += 200
        folder = root / ("plain", "square")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


# An objective with a target for each patch


@pytest.fixture
def quadrants(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "quadrants", quadrant_objective.KIND)
    monkeypatch.setitem(RECIPES, "quadrants", quadrant_objective.recipe)


def test_the_objective_takes_at_most_60_lines():
    assert len((HERE / "support" / "extensions" / "quadrant_objective.py").read_text().splitlines()) <= 60


def test_a_target_for_each_patch_follows_crop_and_flip():
    """Hand-computed: of a 2x2 grid over the right half of an image, mirrored."""
    images = torch.zeros(1, 1, 3, 8, 8)
    views = {"image": ViewBatch(images, torch.tensor([[[0.0, 0.5, 1.0, 0.5]]]), torch.tensor([[True]]))}
    batch = Batch(views, torch.tensor([0]), torch.tensor([0]), torch.tensor([0]))
    found = quadrant_objective.patch_targets(batch, (2, 2))
    # unmirrored, the cells' centres lie at x = 0.625 and 0.875, y = 0.25 and 0.75: all in the right half
    assert found.tolist() == [[1, 1, 3, 3]]
    left = torch.tensor([[[0.0, 0.25, 1.0, 0.5]]])
    views = {"image": ViewBatch(images, left, torch.tensor([[True]]))}
    found = quadrant_objective.patch_targets(Batch(views, batch.targets, batch.index, batch.keys), (2, 2))
    # centres at x = 0.375 and 0.625, mirrored: the right one comes first
    assert found.tolist() == [[1, 0, 3, 2]]


@pytest.mark.slow
def test_fit_trains_with_it(tmp_path, images, quadrants):
    result = vitreous.fit(images, recipe="quadrants", epochs=30, out=tmp_path / "run", workers=0)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-1] < 0.5 * losses[0]
    assert result.metrics["loss"] < 0.7  # of four quadrants, chance is ln 4 = 1.39
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["training"]["objective"]["kind"] == "quadrants"
    assert "Patch accuracy" in (tmp_path / "run" / "report.html").read_text()  # its metrics are drawn too
    again = vitreous.fit(images, recipe="quadrants", epochs=30, out=tmp_path / "run", workers=0)
    assert again == result


# A family


@pytest.fixture
def conv(monkeypatch):
    monkeypatch.setitem(FAMILIES, "tiny-conv", conv_family.FAMILY)


PROGRAM = """
import sys
sys.path.insert(0, {here!r})
from support.extensions import conv_family
from vitreous.model.family import FAMILIES
import vitreous
FAMILIES["tiny-conv"] = conv_family.FAMILY
overrides = {{"ema": "0.9", "save_seconds": "0"}}
vitreous.fit({data!r}, model="tiny-conv-8", epochs=8, out=out, workers=0, overrides=overrides)
"""


@pytest.mark.slow
def test_a_family_is_killed_and_resumed_to_the_same_bits(processes, tmp_path, images, conv, monkeypatch):
    monkeypatch.syspath_prepend(HERE)  # the program changes it, and it is set back
    kept = check_killed_and_resumed(processes, PROGRAM.format(here=str(HERE), data=str(images)), tmp_path)
    assert any("running_mean" in name for name in kept)


def test_a_family_goes_all_the_way(tmp_path, images, conv, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    result = vitreous.fit(images, model="tiny-conv-8", epochs=20, out=tmp_path / "run", workers=0)
    assert result.validation is not None
    assert result.validation.top1 == 1.0
    described = json.loads((tmp_path / "run" / "bundle" / "config.json").read_text())
    assert described["vitreous"]["model"]["family"] == "tiny-conv"
    model = vitreous.load(tmp_path / "run")
    assert isinstance(model.network, conv_family.TinyConv)
    assert model.predict(images / "plain" / "0.png").label == "plain"
    assert model.evaluate(images).result.top1 == 1.0
    assert vitreous.probe(tmp_path / "run", images).scores[0].accuracy == 1.0
    seen = model.explain(images / "square" / "1.png")
    assert seen.method == "gradcam"
    assert seen.map.shape == (24, 24)
    assert seen.label == "square"
    assert seen.map[13:22, 13:22].mean() > 2 * seen.map[:13, :13].mean()  # it was the square that spoke for it
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Tiny ConvNet" in page
    with pytest.raises(vitreous.UserError, match="rollout"):
        model.explain(images / "square" / "1.png", method="rollout")


@pytest.mark.slow
def test_frozen_layers_keep_their_statistics(tmp_path, images, conv):
    first = vitreous.fit(images, model="tiny-conv-8", epochs=4, out=tmp_path / "first", workers=0)
    tuned = vitreous.fit(images, weights=first.bundle, epochs=2, out=tmp_path / "tuned", workers=0)
    assert tuned.probe is not None
    before, after = (load_file(Path(run.bundle) / "model.safetensors") for run in (first, tuned))
    same = {name for name, tensor in before.items() if torch.equal(tensor, after[name])}
    frozen = {name for name in before if name.startswith(("stem.", "blocks.0."))}  # half of two layers
    assert frozen <= same
    assert "blocks.1.0.running_mean" not in same


def test_measuring_before_the_training_changes_no_statistics(tmp_path, images, conv, monkeypatch):
    """How long the test split takes is tried on a copy, and in evaluation mode."""
    for split in ("train", "test"):
        shutil.copytree(images, tmp_path / "data" / split)
    seen = []

    class TrainingBeginsError(Exception):
        pass

    def loop(objective, *args, **more):
        seen.extend(int(tensor) for name, tensor in objective.state_dict().items() if "num_batches" in name)
        raise TrainingBeginsError

    monkeypatch.setattr("vitreous.training.train.Loop", loop)
    with pytest.raises(TrainingBeginsError):
        vitreous.fit(tmp_path / "data", model="tiny-conv-8", budget="1m", out=tmp_path / "run", workers=0)
    assert seen == [0, 0]


# Objectives that are no classifiers


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mae", "dino", "masked-patch"])
def test_fit_trains_whatever_a_recipe_describes(tmp_path, images, monkeypatch, method):
    def recipe(stats):
        training = PRETRAINING[method](replace(stats, classes=0, model="F/8@24"))
        if method == "dino":
            small = {"hidden": 16, "bottleneck": 8, "prototypes": 16}
            return replace(training, batch_size=12, objective=replace(training.objective, **small))
        return replace(training, batch_size=12)

    monkeypatch.setitem(RECIPES, method, recipe)
    result = vitreous.fit(images, recipe=method, epochs=3, out=tmp_path / "run", workers=0)
    assert result.finished
    assert result.validation is None
    assert set(result.metrics) == {"information" if method == "dino" else "loss"}
    assert vitreous.load(tmp_path / "run").labels == ()
    assert (tmp_path / "run" / "decoder").is_dir() == (method == "mae")


# An engine


@pytest.fixture
def pt2(tmp_path, monkeypatch):
    """A bundle and its images, with one engine more."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(ENGINES, "pt2", export_engine.KIND)
    return make_bundle(tmp_path / "bundle"), make_images(tmp_path / "photos")


def test_the_engine_takes_at_most_60_lines():
    assert len((HERE / "support" / "extensions" / "export_engine.py").read_text().splitlines()) <= 60


def test_the_engine_predicts(pt2, tmp_path):
    """The command and Python know it, for a model and for what was exported for it; the checks list it."""
    bundle, images = pt2
    found = run_command("predict", bundle, images, "--engine", "pt2", "--json")
    records = [json.loads(line) for line in found.stdout.splitlines()]
    assert [one["prediction"] for one in records] == [colour for colour in COLOURS for _ in range(4)]
    expected = vitreous.predict(bundle, images, engine="torch")
    assert [one["probability"] for one in records] == pytest.approx([one.score for one in expected], abs=1e-5)
    check_refused(run_command("predict", bundle, images, "--engine", "pt3"), "--engine")
    with pytest.raises(vitreous.UserError, match=r"engine='pt3'.*auto or one of torch, openvino, onnx, pt2"):
        vitreous.predict(bundle, images, engine="pt3")
    with pytest.raises(vitreous.UserError, match="precision='int8'"):
        vitreous.predict(bundle, images, engine="pt2", precision="int8")
    out = vitreous.export_weights(bundle, tmp_path / "exported", to="pt2")
    assert (out / "model.pt2").is_file()
    assert vitreous.predict(out, images) == vitreous.predict(bundle, images, engine="pt2")


def test_bench_measures_the_engine(pt2, monkeypatch):
    bundle, images = pt2
    for slower in ("openvino", "onnx"):
        monkeypatch.setitem(ENGINES, slower, replace(ENGINES[slower], needs=("not_installed",)))
    row = next(row for row in vitreous.bench(bundle, data=images, batch_sizes=[1]).rows if row.engine == "pt2")
    assert (row.accuracy, row.best_batch) == (1.0, 16)
    assert row.images_per_second > 0


def test_an_engine_that_computes_otherwise_is_refused(pt2, monkeypatch):
    """Its probabilities are taken for logits."""
    bundle, images = pt2
    wrong = replace(export_engine.KIND, convert=lambda program, names, _: (program, ["logits", "", names[-1]]))
    monkeypatch.setitem(ENGINES, "pt2", wrong)
    with pytest.raises(vitreous.UserError, match=r"torch\.export does not compute what the network does"):
        vitreous.predict(bundle, images, engine="pt2")


# A checkpoint format


@pytest.fixture
def torchvision_vit(monkeypatch, tmp_path):
    """torchvision's own network, tiny, with all parameters random, and its state_dict in a file."""
    monkeypatch.setitem(FORMATS, "torchvision", torchvision_format.FORMAT)
    sizes = {"num_layers": 2, "num_heads": 3, "hidden_dim": 48, "mlp_dim": 80, "num_classes": 5}
    network = VisionTransformer(image_size=32, patch_size=8, **sizes).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(parameter.numel()))
    torch.save(network.state_dict(), tmp_path / "torchvision.pth")
    return network


def test_the_format_takes_at_most_60_lines():
    assert len((HERE / "support" / "extensions" / "torchvision_format.py").read_text().splitlines()) <= 60


def test_the_format_is_read_and_written(tmp_path, torchvision_vit):
    opened = open_weights(tmp_path / "torchvision.pth", heads=3)
    assert opened.info["family"] == "torchvision"
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(opened.model(images), torchvision_vit(images), rtol=1e-4, atol=1e-5)
    imported = vitreous.import_weights(tmp_path / "torchvision.pth", tmp_path / "bundle", heads=3)
    shown = run_command("export", imported.bundle, tmp_path / "out", "--to", "torchvision").stdout
    assert f'open it: network.load_state_dict(safetensors.torch.load_file("{tmp_path}/out/model.safetensors"))' in shown
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in written.items()} == {
        name: tensor.shape for name, tensor in torchvision_vit.state_dict().items()
    }
    assert all(torch.equal(written[name], tensor) for name, tensor in torchvision_vit.state_dict().items())
    again = open_weights(tmp_path / "out", heads=3)
    assert again.model.config == opened.model.config
    with pytest.raises(vitreous.UserError, match=r"to='nowhere'.*torchvision"):
        vitreous.export_weights(imported.bundle, tmp_path / "other", to="nowhere")


# A data format


@pytest.fixture
def tsv(images, monkeypatch):
    monkeypatch.setitem(DATA_FORMATS, "tsv", tsv_format.FORMAT)
    path = images / "list.tsv"
    path.write_text("".join(f"{p.relative_to(images)}\t{p.parent.name}\n" for p in sorted(images.glob("*/*.png"))))
    yield path
    path.unlink()


def test_the_data_format_takes_at_most_30_lines():
    assert len((HERE / "support" / "extensions" / "tsv_format.py").read_text().splitlines()) <= 30


def test_the_data_format_is_opened_by_every_command(images, tsv):
    data, folder = open_data(tsv), open_data(images)
    assert data.classes == folder.classes == ("plain", "square")
    assert [data.train.key(i) for i in range(40)] == [folder.train.key(i) for i in range(40)]
    assert data.train.labels.tolist() == folder.train.labels.tolist()
    (source,), _ = open_every_image(tsv)  # as predict does
    assert len(source) == 40
    found = json.loads(run_command("inspect", tsv, "--json").stdout)
    assert (found["images"], found["classes"]) == (40, ["plain", "square"])


def test_the_data_format_is_in_the_help_and_in_refusals(tmp_path, tsv):
    for verb in ("fit", "inspect", "evaluate"):
        shown = " ".join(re.sub("[│╭╮╰╯─]", " ", run_command(verb, "--help").stdout).split())
        assert "MNIST files, a .tsv," in shown
    (tmp_path / "x.txt").write_text("a")
    check_refused(run_command("fit", tmp_path / "x.txt"), "x.txt", "a .tsv")


# A verb


@pytest.fixture
def find_dark(monkeypatch):
    """The command in this process, with one verb more."""
    monkeypatch.setitem(GROUPS, "mine", (dark_verb.FindDark,))
    monkeypatch.setenv("COLUMNS", "100")
    return run_command


@pytest.fixture(scope="module")
def greys(tmp_path_factory):
    """Images of one brightness each, in tenths."""
    root = tmp_path_factory.mktemp("greys")
    for tenth in (7, 1, 3, 0):
        Image.new("RGB", (8, 8), (round(25.5 * tenth),) * 3).save(root / f"{tenth}.png")
    return root


def test_the_verb_takes_at_most_40_lines():
    assert len((HERE / "support" / "extensions" / "dark_verb.py").read_text().splitlines()) <= 40


def test_the_verb_is_in_the_help(find_dark):
    listed = find_dark("--help").stdout
    assert re.search(r"find-dark +Find images that are too dark, the darkest first\.", listed)
    assert "mine" in listed
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", find_dark("find-dark", "--help").stdout).split())
    assert shown.startswith("usage: vitreous find-dark [-h]")
    assert "--brightness LEVEL Only images without a brighter pixel: 0 is black, 1 is white." in shown
    assert "(default: 0.2)" in shown
    assert "--limit COUNT At most this many images." in shown
    assert "--json" in shown


def test_the_verb_is_a_command(find_dark, greys):
    dark = [f"{tenth / 10:.2f}  {greys / f'{tenth}.png'}" for tenth in (0, 1, 3)]
    assert find_dark("find-dark", greys).stdout.splitlines() == dark[:2]
    assert find_dark("find-dark", greys, "--brightness", "0.5").stdout.splitlines() == dark
    found = find_dark("find-dark", greys, "--brightness", "0.5", "--limit", "1", "--json")
    assert json.loads(found.stdout) == {str(greys / "0.png"): 0.0}
    check_refused(find_dark("find-dark", greys, "--limit", "0"), "--limit")
    check_refused(find_dark("find-dark", greys, "--brightnes", "1"), "--brightness")
    check_refused(find_dark("find-darc", greys), "find-dark")


def test_the_verb_is_a_function(greys):
    assert [Path(name).stem for name in dark_verb.find_dark(greys, brightness=0.5)] == ["0", "1", "3"]
    seen = []
    callbacks = Callbacks(progress=lambda *event: seen.append(event))
    assert list(dark_verb.find_dark(greys, limit=1, callbacks=callbacks)) == [str(greys / "0.png")]
    assert seen[-1] == ("reading", 3, 4)
    signature = inspect.signature(dark_verb.find_dark)
    assert str(signature.parameters["limit"]) == "limit: 'Count | None' = None"
    assert "brightness: Only images" in (dark_verb.find_dark.__doc__ or "")
    with pytest.raises(vitreous.UserError, match="limit"):
        dark_verb.find_dark(greys, limit=0)
    with pytest.raises(vitreous.UserError, match="did you mean brightness"):
        dark_verb.find_dark(greys, brightnes=1)


def test_the_verb_is_on_the_page_of_commands(find_dark):
    before, page = (HERE.parent / "docs" / "cli.md").read_text(), generate.command_line()
    assert "## `vitreous find-dark`" in page
    assert "find-dark" not in before
    assert page.split("## `vitreous find-dark`")[1].count("--limit COUNT") == 2  # usage and help


# A metric


def test_a_metric_is_measured_printed_and_on_the_page(tmp_path, monkeypatch):
    """By hand: 6 red images are right, and 3 of green and 3 of blue are taken for each other: (1 + 0 + 0) / 3."""
    monkeypatch.setitem(METRICS, "balanced_accuracy", balanced_accuracy.METRIC)
    monkeypatch.setenv("COLUMNS", "100")
    bundle = make_bundle(tmp_path / "bundle", labels=("green", "blue", "red"))
    make_images(tmp_path / "data", colours=("red",), count=6)
    make_images(tmp_path / "data", colours=("green", "blue"), count=3, seed=1)
    found = json.loads(run_command("evaluate", bundle, tmp_path / "data", "--json").stdout)
    assert (found["n"], found["top1"]) == (12, 0.5)
    assert found["balanced_accuracy"] == pytest.approx(1 / 3)
    assert ClassificationResult.from_json(found).metrics["balanced_accuracy"] == found["balanced_accuracy"]
    assert re.search(r"balanced accuracy +33\.33%", run_command("evaluate", bundle, tmp_path / "data").stdout)
    vitreous.write_report(bundle, data=tmp_path / "data", out=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert re.search(r'id="balanced_accuracy">33\.3.%<.*?the mean of the accuracies of all classes', page, re.S)
    single = make_images(tmp_path / "single", colours=("red", "green"), count=1)
    (single / "green" / "0.png").rename(single / "green" / "1.png")
    (tmp_path / "sets.json").write_text(json.dumps({"0.png": ["red", "blue"], "1.png": ["green"]}))
    single_found = json.loads(
        run_command("evaluate", bundle, single, "--label-sets", tmp_path / "sets.json", "--json").stdout
    )
    assert (single_found["top1"], single_found["balanced_accuracy"]) == (0.5, 0.5)
    arguments = ("evaluate", bundle, tmp_path / "data", "--corruptions", "--severities", "1", "--seed", "0")
    clean = json.loads(run_command(*arguments, "--json").stdout)["clean"]
    assert (clean["top1"], clean["balanced_accuracy"]) == (0.5, pytest.approx(1 / 3))
    assert re.search(r"balanced accuracy at severity +1 +mean\s+as they are +33\.3%", run_command(*arguments).stdout)
    monkeypatch.delitem(METRICS, "balanced_accuracy")  # a program without it reads the file too
    assert ClassificationResult.from_json(found).top1 == 0.5


# An explanation method


@pytest.fixture
def gradient(monkeypatch):
    monkeypatch.setitem(EXPLANATION_METHODS, "gradient", gradient_method.METHOD)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def bundle(tmp_path):
    return make_bundle(tmp_path / "bundle")


def test_the_method_is_a_function(bundle, images, gradient):
    """Against the gradient by finite differences, of the whole map."""
    image, model = images / "square" / "1.png", vitreous.load(bundle)
    found = model.explain(image, method="gradient", target=model.labels[1])
    assert (found.method, found.label, found.layers, found.maps.shape) == (
        "gradient",
        model.labels[1],
        (),
        (1, 1, 7, 7),
    )
    network = model.network.double()
    view = normalise(make_view(image, model.bundle.preprocess)[None], model.bundle.preprocess).double()
    expected = torch.zeros(view.shape[2:], dtype=torch.float64)
    with torch.no_grad():
        for place in range(view[0].numel()):
            step = torch.zeros_like(view)
            step.view(-1)[place] = 1e-5
            slope = (network(view + step) - network(view - step))[0, 1] / 2e-5
            expected.view(-1)[place % expected.numel()] += (slope * view.view(-1)[place]).abs()
    np.testing.assert_allclose(found.maps[0, 0], F.adaptive_avg_pool2d(expected[None], 7)[0], rtol=1e-3, atol=1e-6)
    for wrong in ({"layer": 0}, {"head": 0}, {"query": (1.0, 1.0)}):
        with pytest.raises(vitreous.UserError, match=next(iter(wrong))):
            model.explain(image, method="gradient", **wrong)
    with pytest.raises(vitreous.UserError, match=r"method='magic': .*gradient"):
        model.explain(image, method="magic")


def test_the_method_is_in_the_help(gradient):
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", run_command("explain", "--help").stdout).split())
    assert "--method attention|rollout|relevance|gradcam|occlusion|gradient" in shown


def test_the_method_is_a_choice_of_the_command(bundle, images, gradient, tmp_path):
    image = images / "square" / "1.png"
    arguments = ("explain", bundle, image, "--out", tmp_path / "out", "--json", "--method")
    found = json.loads(run_command(*arguments, "gradient").stdout)
    assert [Path(name).name for name in found["files"]] == ["1-gradient.png"]
    check_refused(run_command(*arguments, "gradients"), "--method")
    check_refused(run_command("score-explanations", bundle, images, "--methods", "gradient"), "7x7")
    check_refused(run_command("score-explanations", bundle, images, "--count", "1"), "gradient")  # all, this one too


def test_the_method_is_on_the_servers_page(bundle, images, gradient):
    app = make_app([opened(bundle)], ServerSettings())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        (card,) = client.get("/page/start").json()["models"]
        assert "gradient" in card["methods"]
        assert card["method_cards"]["gradient"] == {
            "title": "Gradient × input",
            "hint": "Which pixels the class would notice first.",
            "explains_class": True,
            "layered": False,
        }
        assert "gradient" not in card["starts"]
        image = (images / "square" / "1.png").read_bytes()
        shown = client.post("/explain?method=gradient&format=json", content=image)
        assert shown.json()["method"] == "gradient"
        assert client.post("/explain?method=gradients", content=image).status_code == 400


# The page


def test_the_code_on_the_page_is_the_code_that_runs(subtests):
    page = (HERE.parent / "docs" / "extend.md").read_text()
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```", page, re.S | re.M)
    assert len(blocks) == 22
    files = [path.read_text() for path in (HERE / "support" / "extensions").glob("*.py")]
    for number, (indent, block) in enumerate(blocks):
        code = "".join(line.removeprefix(indent) for line in block.splitlines(keepends=True))
        with subtests.test(number=number):
            assert any(code.strip() in text for text in files), code


# A measure of an analysis


def test_a_measure_is_in_the_numbers_the_table_and_the_page(images, tmp_path, monkeypatch):
    monkeypatch.setitem(DEPTH_MEASURES, "token_length", token_length.MEASURE)
    bundle = make_bundle(tmp_path / "bundle")
    found = vitreous.analyze([bundle], data=images, count=8, out=tmp_path / "out")
    model = vitreous.load(bundle)
    source = choose_images(open_images(images), 8, 0).measured
    views = torch.stack([make_view(Sample(source, index), model.bundle.preprocess) for index in range(len(source))])
    trace = vitreous.Trace()
    with torch.inference_mode():
        model.network(normalise(views, model.bundle.preprocess), trace=trace)
    states = [trace.embedded, *(trace.tokens[layer] for layer in sorted(trace.tokens))]
    expected = [z[:, trace.prefix :].norm(dim=2).mean().item() for z in states]
    written = json.loads(found.json.read_text())
    assert written["models"][0]["token_length"] == pytest.approx(expected, abs=1e-4)
    (row,) = (row for row in written["summary"] if row["measure"] == "length of tokens")
    assert row["values"] == pytest.approx([expected[-1]], abs=1e-3)
    page = found.page.read_text()
    assert page.count("length of tokens") == 2  # in the table, and above its plot
    assert "as registers were invented for" in page


def test_a_perturbation_has_a_curve_in_the_numbers_and_on_the_page(images, tmp_path, monkeypatch):
    """Two classes that differ in their hue alone, told apart by it: grey images are all alike."""
    monkeypatch.setitem(PERTURBATIONS, "grey", grey_images.GREY)
    bundle = make_bundle(tmp_path / "bundle")
    data = make_images(tmp_path / "data", count=6)
    found = vitreous.analyze([bundle], data=data, count=12, what="bias", out=tmp_path / "out")
    (model,) = json.loads(found.json.read_text())["models"]
    assert [effect["at"] for effect in model["grey"]] == [0.5, 1.0]
    assert model["grey"][1]["same"] < model["grey"][0]["same"] <= 1
    assert model["grey"][1]["accuracy"] < 0.7
    assert "A steep fall: the model relies on colours." in found.page.read_text()
    del model["name"]
    again = Bias.from_json(model)
    assert again.effects["grey"][1].same == model["grey"][1]["same"]
    del model["grey"]  # a file from before
    assert set(Bias.from_json(model).effects) == {"shuffled", "low_pass", "high_pass"}
