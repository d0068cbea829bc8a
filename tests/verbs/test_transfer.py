"""`transfer` as a person uses it: tiny tasks under every protocol, what is missing, and a folder that goes on."""

import json
from dataclasses import replace
from hashlib import blake2b
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from support import transfers
from support.colours import make_bundle, make_images, pixels
from support.commands import check_refused, run_command
from support.fake_clock import fake_clock
from support.greys import stop_after
from support.tiny_networks import random_images
from vitreous import UserError, probe, transfer
from vitreous.callbacks import Callbacks
from vitreous.cli import main
from vitreous.config.fields import from_fields
from vitreous.config.overrides import override
from vitreous.data.builtin import builtin_data
from vitreous.data.datasets.dataset import Dataset, Vtab
from vitreous.data.datasets.store import CARD, Card
from vitreous.data.datasets.table import DATASETS
from vitreous.data.opening import open_data
from vitreous.data.packed import ArraySource
from vitreous.data.source import Data, random_subset
from vitreous.inference.conversion import convert_model
from vitreous.inference.engine_cache import EngineCache
from vitreous.inference.engine_folder import Int8Accuracy
from vitreous.inference.engines import TORCH, Variant
from vitreous.studies.transfer import finetuning, frozen, tasks
from vitreous.studies.transfer import transfer as study
from vitreous.studies.transfer.result import TaskScore
from vitreous.training.folder import read_config
from vitreous.training.recipes import supervised
from vitreous.training.recipes.supervised import DatasetStats
from vitreous.weights.bundle import load_bundle, save_bundle
from vitreous.weights.seen_images import find_seen_images

BUDGET = "24s"
ALL = ("vtab-1k", "full", "linear", "knn", "fewshot-5")


@pytest.fixture(scope="module", autouse=True)
def short(tmp_path_factory):
    """Times may be so short that they teach nothing, a step takes 0.1 s, and nothing is kept from other tests."""
    with fake_clock(step_seconds=0.1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "MIN_SECONDS", 0.01)
        patch.setattr(study, "WRITING_SECONDS", 0.0)
        patch.setenv("VITREOUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("VITREOUS_DATA", str(tmp_path_factory.mktemp("root")))
        yield


def draw(path, train, test, seed=0, **more):
    """An .npz of blue, green and red images in turn."""

    def some(count, first):
        made = [pixels(("blue", "green", "red")[i % 3], seed + first + i, (16, 16)) for i in range(count)]
        return np.stack(made), np.arange(count) % 3

    (x, y), (other, truth) = some(train, 0), some(test, 10_000)
    np.savez(path, x_train=x, y_train=y, x_test=other, y_test=truth, **more)
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("bundle") / "b")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("data") / "colours.npz", 1010, 60)


@pytest.fixture(scope="module")
def finished(bundle, images, tmp_path_factory):
    """A transfer that several tests look at: its folder and its result."""
    out = tmp_path_factory.mktemp("transfer") / "out"
    return out, transfer(bundle, tasks=[images], protocols=ALL, budget=BUDGET, workers=0, out=out)


def test_every_protocol(finished, bundle, images):
    out, found = finished
    assert found.finished
    assert [(score.task, score.protocol) for score in found.scores] == [("colours", name) for name in ALL]
    assert all(score.accuracy > 0.9 for score in found.scores)
    assert {path.name for path in out.iterdir()} == {
        "config.json", "scores", "runs", "transfer.json", "transfer.html",
    }  # fmt: skip
    by_probe = {score.setting["k"]: score for score in probe(bundle, images).scores}
    nearest = found.score("colours", "knn")
    assert (nearest.n, nearest.trained_on) == (60, 1010)
    assert found.score("colours", "full").settings["steps"] > 0
    assert (nearest.accuracy, nearest.interval) == (by_probe[20].accuracy, by_probe[20].interval)


def test_vtab_1k_tries_on_800_and_ends_on_1000(finished, images):
    out, found = finished
    score = found.score("colours", "vtab-1k")
    runs = {path.name: read_config(path) for path in (out / "runs" / "colours-vtab-1k").iterdir()}
    assert {name: run.splits for name, run in runs.items()} == {
        "trial-0.0002": {"train": 800, "val": 200},
        "trial-0.0006": {"train": 800, "val": 200},
        "final": {"train": 1000},
    }
    assert [trial.n for trial in score.trials] == [200, 200]
    best = max(trial.accuracy for trial in score.trials)
    rate = score.settings["optimizer.learning_rate"]
    assert next(t for t in score.trials if t.settings["optimizer.learning_rate"] == rate).accuracy == best
    # the images are those of the rule: the first 1,000 of an order by BLAKE2b of "vtab-1k", a null byte and the name
    source = open_data(images).train
    keys = sorted(
        range(len(source)), key=lambda i: blake2b(b"vtab-1k\0" + source.key(i).encode(), digest_size=8).digest()
    )
    trained = finetuning.vtab_1k(open_data(images), "colours")
    assert [trained.train.key(i) for i in range(800)] == [source.key(i) for i in keys[:800]]
    assert [trained.val.key(i) for i in range(200)] == [source.key(i) for i in keys[800:1000]]
    assert score.digests["vtab-1k"] == trained.digest


def test_the_file_has_every_setting_and_the_page_stands_alone(finished):
    out, found = finished
    said = json.loads((out / "transfer.json").read_text())
    assert said["generator"].startswith("vitreous ")
    assert [from_fields(TaskScore, score, out) for score in said["scores"]] == list(found.scores)
    tuned = said["scores"][0]["settings"]
    assert {"optimizer.learning_rate", "augment.flip", "preprocess.size", "seed", "batch_size", "steps"} <= set(tuned)
    assert all({"train", "test"} <= set(score["digests"]) for score in said["scores"])
    days = said["tpu_v3_core_days"]
    assert days["value"] == pytest.approx(said["flops"] / (days["peak"] * days["utilisation"] * 86400))
    page = (out / "transfer.html").read_text()
    for text in ("97.56 ± 0.03", "12,300", "76.29 ± 1.70", "TPUv3-core-days", "colours"):
        assert text in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_repeated_it_does_nothing_and_other_settings_are_refused(finished, bundle, images, monkeypatch, tmp_path):
    out, found = finished

    def never(*args, **more):
        raise AssertionError("it is finished")

    for name in ("measure_frozen", "measure_fine_tuned"):
        monkeypatch.setattr(study, name, never)
    given = {"tasks": [images], "protocols": ALL, "budget": BUDGET, "workers": 0, "out": out}
    again = transfer(bundle, **given)
    assert again.scores == found.scores
    for other, named in {"budget": ("13s", f"budget='{BUDGET}'"), "image_size": (32, "image-size=None")}.items():
        with pytest.raises(UserError, match=f"{out}: .*{named[1]}"):
            transfer(bundle, **{**given, other: named[0]})
    with pytest.raises(UserError, match=f"{out}: .*model="):
        transfer(make_bundle(tmp_path / "b", labels=("a", "b", "c")), **given)
    changed = draw(tmp_path / "colours.npz", 1009, 60)
    with pytest.raises(UserError, match=f"{changed}: .*{out}"):
        transfer(bundle, **{**given, "tasks": [changed]})
    with pytest.raises(UserError, match=str(tmp_path)):
        transfer(bundle, **{**given, "out": tmp_path})


def test_what_is_not_there_is_listed_and_counts_nowhere(bundle, images, tmp_path):
    few = draw(tmp_path / "few.npz", 30, 12)
    given = {"workers": 0, "out": tmp_path / "out"}
    with pytest.raises(UserError, match="`vitreous data get svhn`"):
        transfer(bundle, tasks=["svhn"], **given)
    assert not (tmp_path / "out").exists()
    found = transfer(bundle, tasks=["specialized", f"pets={few}"], protocols=["knn", "vtab-1k"], **given)
    missing = {one.task: one.group for one in found.absent if one.protocol is None}
    assert missing == dict.fromkeys(("camelyon", "eurosat", "resisc45", "retinopathy"), "specialized")
    (left_out,) = [one for one in found.absent if one.protocol is not None]
    assert (left_out.task, left_out.protocol) == ("pets", "vtab-1k")
    assert "800" in left_out.reason
    assert [(mean.what, mean.tasks, mean.of) for mean in found.means] == [("natural", 1, 7), ("VTAB tasks", 1, 19)]
    assert any("k = 100, 200" in remark and " 30 " in remark for remark in found.scores[0].remarks)
    assert found.tasks[0].as_published is False
    assert len(found.tasks[0].remarks) == 1, "what the table says of its own images may not hold of these"
    assert "3,680 train, 3,669 test" in found.tasks[0].remarks[0]
    page = (tmp_path / "out" / "transfer.html").read_text()
    assert "vitreous data get eurosat" in page
    accuracy = f"{100 * found.scores[0].accuracy:.1f} ("
    assert any("knn" in row and accuracy in row for row in page.split("</tr>")), "beside those of the papers"


def test_protocols_may_be_added_and_one_split_is_enough(bundle, tmp_path):
    x = np.stack([pixels(("blue", "green", "red")[i % 3], i, (16, 16)) for i in range(60)])
    np.savez(tmp_path / "one.npz", images=x, labels=np.arange(60) % 3)
    given = {"tasks": [tmp_path / "one.npz"], "workers": 0, "out": tmp_path / "out"}
    first = transfer(bundle, protocols=["knn"], **given)
    assert (first.scores[0].n, first.scores[0].trained_on) == (12, 48)
    assert "20%" in first.tasks[0].remarks[0]
    second = transfer(bundle, protocols=["knn", "fewshot-5"], **given)
    assert second.scores[0] == first.scores[0]
    assert (second.scores[1].trained_on, len(second.scores[1].draws)) == (15, 5)


def test_the_page_has_what_earlier_commands_measured(bundle, tmp_path):
    one, other = draw(tmp_path / "one.npz", 30, 12), draw(tmp_path / "other.npz", 30, 12, seed=100)
    given = {"workers": 0, "out": tmp_path / "out"}
    first = transfer(bundle, tasks=[one], protocols=["knn"], **given)
    second = transfer(bundle, tasks=[other], protocols=["fewshot-5"], **given)
    assert [(score.task, score.protocol) for score in second.scores] == [("other", "fewshot-5"), ("one", "knn")]
    assert second.scores[1] == first.scores[0]
    assert second.tasks[1] == first.tasks[0]
    assert json.loads((tmp_path / "out" / "transfer.json").read_text())["protocols"] == ["fewshot-5", "knn"]
    page = (tmp_path / "out" / "transfer.html").read_text()
    assert f"{100 * first.scores[0].accuracy:.1f}" in page
    assert str(one) in page


def test_features_that_were_kept_count_all_the_same(bundle, tmp_path):
    given = {"tasks": [draw(tmp_path / "few.npz", 30, 12, seed=500)], "workers": 0}
    first = transfer(bundle, protocols=["knn"], **given, out=tmp_path / "a")
    elsewhere = transfer(bundle, protocols=["knn"], **given, out=tmp_path / "b")
    added = transfer(bundle, protocols=["knn", "fewshot-5"], **given, out=tmp_path / "a")
    assert first.flops == elsewhere.flops == added.flops == 42 * first.model.forward_flops
    kept = [any(" 42 " in remark for remark in one.scores[-1].remarks) for one in (first, elsewhere, added)]
    assert kept == [False, True, True]


@pytest.mark.slow
def test_test_images_that_were_trained_on_are_noted(bundle, tmp_path):
    images, model = draw(tmp_path / "few.npz", 30, 12), load_bundle(bundle)
    test = open_data(images).splits["test"]
    seen = find_seen_images(Data({"train": test.subset(range(5))}, test.classes))
    save_bundle(tmp_path / "b", model.model, model.preprocess, model.labels, seen_images=seen)
    found = transfer(tmp_path / "b", tasks=[images], protocols=["knn"], workers=0, out=tmp_path / "out")
    assert seen.overlap(test).sentence in found.score("few", "knn").remarks


def test_int8_that_is_kept_for_the_model_is_not_what_is_measured(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    opened = load_bundle(bundle)
    converted = convert_model(opened, "openvino", random_images(opened, 4))
    metadata = replace(converted.metadata, precision="int8", accuracy=Int8Accuracy(1000, 900, 0, 0))
    cache = EngineCache(opened)
    cache.put(replace(converted, conversion=metadata))
    cache.remember({TORCH: 1.0, Variant("openvino", "int8"): 1000.0})
    few = draw(tmp_path / "few.npz", 30, 12)
    found = transfer(bundle, tasks=[few], protocols=["knn"], workers=0, out=tmp_path / "out")
    assert found.scores[0].engine == "torch fp32"


def test_a_image_that_cannot_be_read_does_not_make_a_sample_of_the_rest(bundle, tmp_path):
    for split, seed in (("train", 0), ("test", 500)):
        make_images(tmp_path / "data" / split, 12, seed=seed)
    broken = min((tmp_path / "data" / "test").glob("*/*"))
    broken.write_bytes(b"no image")
    said = []
    given = {"tasks": [tmp_path / "data"], "protocols": ["knn"], "workers": 0, "out": tmp_path / "out"}
    (score,) = transfer(bundle, **given, callbacks=Callbacks(message=said.append)).scores
    assert (score.n, score.unreadable, score.of) == (35, 1, 36)
    assert score.tested_all
    assert "35 test, 1 unreadable" in said[-1]


def test_unreadable_files_that_the_whole_data_may_have_end_no_task(bundle, tmp_path):
    """3 of 330 are fewer than 1 %, though all 3 are among the first few that are timed."""
    make_images(tmp_path / "data" / "train", 12)
    make_images(tmp_path / "data" / "test", 110, seed=500)
    test = open_data(tmp_path / "data").splits["test"]
    first = random_subset(test, tasks.SEED, 3)
    for index in range(3):
        first.path(index).write_bytes(b"no image")
    given = {"tasks": [tmp_path / "data"], "protocols": ["knn"], "budget": "20s", "workers": 0}
    (score,) = transfer(bundle, **given, out=tmp_path / "out").scores
    assert (score.n, score.unreadable) == (327, 3)


def test_overwriting_begins_anew(bundle, tmp_path):
    given = {"tasks": [draw(tmp_path / "x.npz", 30, 12)], "protocols": ["knn"], "workers": 0, "out": tmp_path / "out"}
    transfer(bundle, **given)
    draw(tmp_path / "x.npz", 36, 12)
    with pytest.raises(UserError, match=rf"x\.npz: .*\b36 train .*\b30 .*{tmp_path / 'out'} .*--overwrite.*--out"):
        transfer(bundle, **given)
    (score,) = transfer(bundle, **given, overwrite=True).scores
    assert score.trained_on == 36


def test_the_cost_of_fine_tuning_is_not_that_of_pretraining():
    spent = {"flops": 5e15, "seconds": 60.0}
    assert study.training_flops({"request": {"weights": None}, "spent": spent}) == 5e15
    assert study.training_flops({"request": {"weights": "ti16.safetensors"}, "spent": spent}) is None
    assert study.training_flops({"request": {"weights": None}}) is None
    assert study.training_flops({}) is None


def test_a_row_that_is_added_to_the_table_is_a_task(tmp_path, monkeypatch):
    """With its group, and opened from the folder that `data get` would make."""
    row = Dataset(
        "colours", "Colours", "", "", "", (), 3, {"train": 30, "test": 12},
        lambda folder: open_data(folder / "x.npz"), vtab=Vtab("natural", 90), split_by="nobody", notes=("A note.",),
    )  # fmt: skip
    monkeypatch.setitem(DATASETS, "colours", row)
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path))
    (named,) = tasks.name_tasks(["colours"])
    assert not named.on_machine
    (tmp_path / "colours").mkdir()
    draw(tmp_path / "colours" / "x.npz", 30, 12)
    (tmp_path / "colours" / CARD).write_text(Card("colours", ".").to_json())
    assert named.on_machine
    found = tasks.open_task(named).summary
    assert (found.group, found.as_published, found.splits) == ("natural", True, {"train": 30, "test": 12})
    assert "colours" in [one.name for one in tasks.name_tasks(["natural"])]
    assert tasks.name_tasks(["natural", "colours", "data:colours"]) == tasks.name_tasks(["natural"])  # each once
    (by_path,) = tasks.name_tasks([tmp_path / "colours"])
    assert by_path.dataset is row
    assert found.remarks == tasks.open_task(by_path).summary.remarks == ("Splits: nobody.", "A note.")


def test_shards_that_are_far_are_a_task_of_their_own():
    near, far = tasks.name_tasks(["mine=https://host/a.tar?key=1", "https://host/pets/shards.json"])
    assert (near.name, near.place) == ("mine", "https://host/a.tar?key=1")
    assert (far.name, far.place, far.dataset) == ("pets", "https://host/pets/shards.json", None)
    with pytest.raises(UserError, match="pipe:"):
        tasks.name_tasks(["pipe:cat"])


def test_a_key_in_an_address_stays_out_of_the_page(monkeypatch):
    monkeypatch.setattr(tasks, "open_dataset", lambda place: builtin_data())
    (named,) = tasks.name_tasks(["https://host/a.tar?key=1"])
    assert tasks.open_task(named).summary.place == "https://host/a.tar"


def test_images_by_the_lists_of_vtab_are_its_own_draw(tmp_path, monkeypatch):
    """Under vtab-1k they are all that there is to learn from; under other protocols they are a part."""
    counts = {"train800": 800, "val200": 200, "test": 15}
    for name, count in counts.items():
        lines = [f"images/{name}-{number}.jpg {number % 3}" for number in range(count)]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    published = {"train": 70_000, "test": 15}
    row = replace(DATASETS["clevr-count"], splits=published)
    monkeypatch.setitem(DATASETS, "clevr-count", row)
    (named,) = tasks.name_tasks([f"clevr-count={tmp_path}"])
    task = tasks.open_task(named).summary
    assert (task.group, task.own_draw, task.as_published) == ("structured", True, False)
    assert not named.varied, "a crop would change the count"
    assert "70,000 train, 15 test" in task.remarks[0]
    score = TaskScore("clevr-count", "vtab-1k", 0.5, (0.4, 0.6), 15, 15, 1000, 1000, {}, {}, 1.0, 1.0, "torch fp32")
    found = replace(transfers.FOUND, tasks=(task,), scores=(score,))
    assert found.is_whole(score)
    assert not found.is_whole(replace(score, protocol="linear"))
    monkeypatch.setitem(DATASETS, "clevr-count", replace(row, splits={**published, "test": 16}))
    (named,) = tasks.name_tasks([f"clevr-count={tmp_path}"])
    assert not tasks.open_task(named).summary.own_draw, "a test image is missing"


@pytest.fixture
def shortened(monkeypatch):
    """The paper's settings with fewer steps; the recipe is held by a test of its own."""
    whole = supervised.RECIPES["vtab"]
    monkeypatch.setitem(
        supervised.RECIPES, "vtab", lambda s: replace(whole(s), epochs=1, batch_size=64, save_seconds=0)
    )


@pytest.mark.usefixtures("shortened")
def test_the_published_choice_without_a_budget(bundle, images, tmp_path, monkeypatch):
    """Of a task whose answer a crop or a mirror image would change, and of which a test image cannot be read."""
    measure = finetuning.measure_classifier

    def without_one(model, source, **more):
        return measure(model, source.subset(range(59)), **more)[0], {"59": "broken"}

    monkeypatch.setattr(finetuning, "measure_classifier", without_one)
    found = transfer(bundle, tasks=[f"dmlab={images}"], image_size=16, workers=0, out=tmp_path / "out")
    (score,) = found.scores
    assert (score.n, score.unreadable, score.of, score.trials) == (59, 1, 60, ())
    assert score.tested_all
    assert (score.settings["optimizer.name"], score.settings["optimizer.learning_rate"]) == ("sgd", 0.01)
    assert (score.settings["augment.flip"], score.settings["augment.crop_scale"]) == (False, None)
    assert (score.settings["augment.pad"], score.settings["preprocess.crop"]) == (0, 1.0)
    assert score.settings["preprocess.resize"] == "stretch"


def test_steps_of_the_papers_table_4():
    """Pets, CIFAR and ImageNet."""
    assert [finetuning.paper_steps(images) for images in (3_680, 50_000, 1_281_167)] == [500, 10_000, 20_000]


@pytest.fixture
def asked(monkeypatch):
    """The requests and methods of trainings, each stopped at once."""
    found = []

    def stopped(request, place, runtime, callbacks, method):
        found.append((request, method))
        return SimpleNamespace(finished=False)

    monkeypatch.setattr("vitreous.studies.folder.train", stopped)
    return found


def test_full_is_at_the_papers_resolution_without_a_budget(bundle, images, tmp_path, asked):
    for number, more in enumerate(({}, {"image_size": 32}, {"budget": "10s"})):
        transfer(bundle, tasks=[images], protocols=["full"], workers=0, out=tmp_path / str(number), **more)
    found = [(request.recipe, request.image_size) for request, _ in asked]
    assert found == [("paper-finetune", 384), ("paper-finetune", 32), ("auto", None)]


def test_nothing_is_left_out_of_images_whose_label_that_would_change(bundle, images, tmp_path, asked, subtests):
    recipe = supervised.RECIPES["small-data"](DatasetStats(classes=3, images=800, side=64, channels=3))
    assert recipe.objective.keep_schedule, "half of the patches, for most of the steps"
    for name, whole in {"dmlab": True, "mnist": True, "pets": False}.items():
        with subtests.test(name):
            asked.clear()
            transfer(bundle, tasks=[f"{name}={images}"], budget="10s", workers=0, out=tmp_path / name)
            ((request, method),) = asked
            assert (method.weights.preprocess.resize == "stretch") == whole
            assert ("augment.flip" in request.overrides) == ("objective.keep_schedule" in request.overrides) == whole
            assert bool(override(recipe, request.overrides).objective.keep_schedule) != whole


@pytest.mark.usefixtures("shortened")
def test_it_goes_on_where_it_was_stopped(bundle, images, tmp_path):
    given = {"tasks": [images], "image_size": 16, "workers": 0}
    stopped = transfer(bundle, **given, out=tmp_path / "a", callbacks=Callbacks(should_stop=stop_after(5)))
    assert (stopped.finished, stopped.scores) == (False, ())
    resumed = transfer(bundle, **given, out=tmp_path / "a")
    whole = transfer(bundle, **given, out=tmp_path / "b")
    assert resumed.finished
    assert resumed.scores[0].accuracy == whole.scores[0].accuracy
    weights = [tmp_path / one / "runs/colours-vtab-1k/final/bundle/model.safetensors" for one in "ab"]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_training_that_was_stopped_keeps_to_the_time_it_was_given(bundle, images, tmp_path):
    given = {"tasks": [images], "protocols": ["vtab-1k"], "budget": "2m", "workers": 0, "out": tmp_path / "out"}
    begun = []
    for _ in range(2):
        found = transfer(bundle, **given, callbacks=Callbacks(should_stop=lambda: True))
        assert not found.finished
        begun.append(read_config(tmp_path / "out" / "runs" / "colours-vtab-1k" / "trial-0.0002").request)
    assert begun[0] == begun[1]


def test_a_budget_is_divided_and_what_is_left_is_shared(bundle, tmp_path, monkeypatch):
    """Three tasks of 97 s: each gets its share of what is left; the first took 4 s only, the second all and more."""
    given, taken = [], iter((4.0, 93.0, 0.0))
    clock = SimpleNamespace(now=0.0)

    def measured(model, task, protocols, seconds, **more):
        given.append(seconds)
        clock.now += next(taken)
        raise UserError("nothing")

    monkeypatch.setattr(study, "measure_frozen", measured)
    monkeypatch.setattr(study, "MIN_SECONDS", 20.0)
    monkeypatch.setattr("vitreous.distributed.meter.Meter.seconds", property(lambda self: clock.now))
    some = [draw(tmp_path / f"{name}.npz", 30, 12) for name in "abc"]
    heard = []
    with pytest.raises(UserError, match="knn"):  # as no task has a score
        transfer(
            bundle, tasks=some, protocols=["knn"], budget="100.7s", workers=0, out=tmp_path / "out",
            callbacks=Callbacks(message=heard.append),
        )  # fmt: skip
    assert given == pytest.approx([97 / 3, 96 * 0.97 / 2])
    assert "c, knn" in heard[-1]  # there is no time left for it
    clock.now = 0.0
    with pytest.raises(UserError, match=r"budget '60s': .*\b3 .*20 s .*\b70s"):
        transfer(bundle, tasks=some, protocols=["knn"], budget="60s", workers=0, out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_images_that_fit():
    """0.1 s a look, 0.1 s more to learn: 100 test images take 10 s, 400 known ones 80 s."""
    expected = {1000: (100, 400), 50: (100, 200), 30: (100, 100), 12: (60, 50), 0.1: (50, 50)}
    assert {seconds: frozen.images_in_time(seconds, 0.1, 0.1, 100, 400) for seconds in expected} == expected


def test_five_of_each_class_are_there_however_short_the_time(monkeypatch):
    """A linear classifier beside few-shot wants validation images too: they are not taken from the five."""
    classes = tuple(map(str, range(40)))
    pixels = torch.zeros(400, 1, 2, 2, dtype=torch.uint8)
    source = ArraySource("x", pixels, np.arange(400) % len(classes), classes)
    task = SimpleNamespace(
        named=SimpleNamespace(name="x"), data=Data({"train": source, "val": source, "test": source}, classes)
    )
    monkeypatch.setattr(frozen, "seconds_per_image", lambda *_: 1.0)
    monkeypatch.setattr(frozen, "FeatureReader", lambda *_, **__: SimpleNamespace(compute=None))
    model = SimpleNamespace(config=SimpleNamespace(features=8))
    for protocols in (("linear", "fewshot-5"), ("fewshot-5",), ("linear", "knn", "fewshot-5")):
        part = frozen.subset_in_time(model, task, 60.0, protocols, 0)
        assert np.bincount(part.train.labels).tolist() == [5] * 40
        assert len(part.splits["test"]) == 50
    assert len(frozen.subset_in_time(model, task, 60.0, ("linear", "knn"), 0).train) == 25


def test_the_command(bundle, images, capsys, tmp_path):
    words = ["transfer", str(bundle), "--tasks", str(images), "--protocols", "knn,fewshot-5", "--workers", "0"]
    main([*words, "--out", str(tmp_path / "out"), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert [score["protocol"] for score in said["scores"]] == ["knn", "fewshot-5"]
    main([*words, "--out", str(tmp_path / "out")])
    shown = capsys.readouterr().out
    assert "TPUv3-core-days" in shown
    assert f"{tmp_path / 'out'}/transfer.html" in shown


MISTAKES = {
    ("--tasks", ""): "--tasks ''",
    ("--tasks", "builtin,,"): "--tasks ''",
    ("--tasks", "natural,pets=builtin"): "'pets'",
    ("--tasks", "pet"): "pets",
    ("--tasks", "pets="): "NAME=PATH",
    ("--tasks", "data:nothing"): "nothing",
    ("--tasks", "builtin", "--protocols", "magic"): "vtab-1k, full, linear, knn, fewshot-5",
    ("--tasks", "builtin", "--budget", "0.001s"): "0.001s",
    ("--tasks", "builtin", "--budget", "soon"): "'soon'",
}


def test_mistakes(bundle, tmp_path, subtests):
    for words, named in MISTAKES.items():
        with subtests.test(" ".join(words)):
            check_refused(run_command("transfer", bundle, *words, "--workers", "0", "--out", tmp_path / "out"), named)
            assert not (tmp_path / "out").exists()
