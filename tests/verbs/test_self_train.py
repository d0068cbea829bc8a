"""Noisy Student from folder to folder: right labels, the same bits after any interruption, and clear refusals."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from support.colours import COLOURS, make_bundle, make_images, pixels
from support.fake_clock import fake_clock
from support.greys import draw_images, stop_after
from support.killing import run_and_kill
from vitreous import UserError, self_train
from vitreous.callbacks import Callbacks
from vitreous.data.opening import open_data
from vitreous.data.source import split_validation
from vitreous.distributed.meter import Cost
from vitreous.distributed.world import World
from vitreous.evaluation.intervals import Paired
from vitreous.studies.requests import SelfTrainRequest
from vitreous.studies.self_train import labelling
from vitreous.studies.self_train import self_train as study
from vitreous.studies.self_train.labelling import label_images
from vitreous.studies.self_train.result import Round, RoundScore, SelfTrainResult, read_self_training
from vitreous.training.deadline import Deadline
from vitreous.training.folder import source_digest
from vitreous.training.recipes.supervised import recipe
from vitreous.training.start import CPU_HOUR_FLOPS, Runtime, choose_training

QUICK = {"rounds": 2, "epochs": 4, "workers": 0, "model": "F/4@16", "confidence": 0.3}


def draw_unsorted(folder, count=8, colours=COLOURS):
    """Images of all colours in a folder and in one below, named so that only their pixels tell."""
    (folder / "below").mkdir(parents=True)
    for i in range(count * len(colours)):
        place = folder / "below" if i % 2 else folder
        Image.fromarray(pixels(colours[i % len(colours)], 7000 + i)).save(place / f"{i:03}.png")
    return folder


def colour_of(path):
    """By the channel that is brightest."""
    return ("red", "green", "blue")[np.asarray(Image.open(path)).mean(axis=(0, 1)).argmax()]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Labelled images, with a test split, and unsorted ones, of which one is a labelled one."""
    root = tmp_path_factory.mktemp("place")
    make_images(root / "labelled/train", count=6)
    make_images(root / "labelled/test", count=3, seed=5000)
    draw_unsorted(root / "unsorted")
    shutil.copy(root / "labelled/test/red/0.png", root / "unsorted/copy.png")
    return root


def quick(place, out, **more):
    return self_train(place / "labelled", place / "unsorted", out=out, **{**QUICK, **more})


@pytest.fixture
def no_page(monkeypatch):
    """The pages of single rounds take most of the time."""
    monkeypatch.setattr("vitreous.training.train.write_run_page", lambda *_: None)


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory):
    """A self-training that nothing disturbed, with a page for each round."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return quick(place, out)


@pytest.fixture
def whole_result():
    score = RoundScore(9, 0.5, (0.2, 0.8), 1.0)
    rounds = tuple(Round(k, f"out/round-{k}", "F/4", 5, 10, score, score, None, Cost()) for k in (0, 1))
    return SelfTrainResult("out", "out/bundle", True, ("a", "b"), 5, 9, 0, rounds, 1, 0, Cost())


def table(folder):
    with (folder / "labels.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def held(out):
    """All that should come out the same: weights, labels, and what was logged."""
    names = ("model.safetensors", "labels.csv", "labels.safetensors", "metrics.jsonl")
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for name in names
        for path in out.rglob(name)
        if "checkpoints" not in path.parts
    }


@pytest.mark.slow
def test_the_unsorted_images_get_the_right_labels(place, whole):
    out = Path(whole.run)
    assert whole.finished
    assert (whole.labelled, whole.unlabelled, whole.duplicates) == (15, 24, 1)
    for folder in ("round-1", "round-2", "final"):
        rows = table(out / "labels" / folder)
        assert len(rows) == 24
        assert all(row["label"] == colour_of(row["path"]) for row in rows)
        assert all(float(row["probability"]) >= float(row["second_probability"]) for row in rows)
    assert {row["taken"] for row in table(out / "labels/round-1")} == {"1"}
    assert {row["changed"] for row in table(out / "labels/round-2")} == {"0"}


@pytest.mark.slow
def test_each_round_is_a_run_and_the_folder_is_a_model(place, whole):
    out = Path(whole.run)
    assert [one.number for one in whole.rounds] == [0, 1, 2]
    for one in whole.rounds:
        assert one.test.n == 9
        assert one.validation.n == 3
        assert (Path(one.run) / "report.html").exists()
        assert vitreous.load(one.run).predict(place / "labelled/test/green/1.png").label == "green"
    assert whole.rounds[1].labels.taken == dict.fromkeys(COLOURS, 8)
    assert whole.rounds[1].labels.changed is None
    assert whole.rounds[2].labels.changed == 0
    assert vitreous.load(out).predict(place / "labelled/test/blue/1.png").label == "blue"
    kept = out / f"round-{whole.best}/bundle/model.safetensors"
    assert (out / "bundle/model.safetensors").read_bytes() == kept.read_bytes()
    best = max(one.validation.accuracy for one in whole.rounds)
    assert whole.rounds[whole.best].validation.accuracy == best
    assert json.loads((out / "result.json").read_text())["best"] == whole.best


@pytest.mark.slow
def test_students_are_noised_and_learn_soft_labels_with_the_same_validation_images(whole):
    out = Path(whole.run)
    teacher, student = (json.loads((out / f"round-{k}/config.json").read_text()) for k in (0, 1))
    assert teacher["training"]["augment"]["policy"] != "randaugment"
    assert student["training"]["model"]["drop_path"] > 0
    assert student["request"]["pseudo_labels"] == "soft"
    assert student["splits"] == {"train": 15 + 24, "val": 3, "test": 9}
    names = [
        sorted(answer["image"] for kind in ("surest_right", "surest_wrong") for answer in result["validation"][kind])
        for result in (json.loads((out / f"round-{k}/result.json").read_text()) for k in (0, 1, 2))
    ]
    assert names[0] == names[1] == names[2]


@pytest.mark.slow
def test_the_kept_student_and_the_teacher_are_set_beside_each_other(place, whole):
    """All 9 test images, and the two accuracies differ by what only one has right; the page says so."""
    assert whole.best > 0
    paired = whole.against_teacher
    assert (paired.split, paired.n) == ("test", 9)
    teacher, kept = (whole.rounds[k].test.accuracy for k in (0, whole.best))
    assert paired.difference == pytest.approx(kept - teacher)
    assert f"{100 * paired.difference:+.1f} " in (Path(whole.run) / "report.html").read_text()
    assert read_self_training(Path(whole.run)) == whole


def config_of(out, number):
    return json.loads((Path(out) / f"round-{number}/config.json").read_text())


@pytest.mark.slow
def test_all_rounds_have_the_validation_images_that_a_budget_calls_for(place, tmp_path, no_page, monkeypatch):
    """With a recipe that sets a third aside with a budget and a half without, it must be 6 images of 18."""

    def timed(name, stats):
        training = recipe(name, stats)
        return replace(training, validation=1 / 2 if stats.affordable == CPU_HOUR_FLOPS else 1 / 3)

    monkeypatch.setattr("vitreous.training.start.recipe", timed)
    with fake_clock():
        found = quick(place, tmp_path / "out", rounds=1, epochs=None, budget="4s")
    configs = [config_of(found.run, k) for k in (0, 1)]
    assert [config["splits"]["val"] for config in configs] == [6, 6]
    assert configs[0]["digests"]["val"] == configs[1]["digests"]["val"]
    assert configs[0]["splits"]["train"] == found.labelled == 12


def test_the_device_counts_in_what_is_set_aside(place, tmp_path, monkeypatch):
    asked = []

    def noted(request, data, base, device="cpu", **more):
        asked.append(device)
        return choose_training(request, data, base, device, **more)

    monkeypatch.setattr(study, "choose_training", noted)
    nowhere = Runtime(0, World(device=torch.device("meta")))
    monkeypatch.setattr("vitreous.training.start.local_runtime", lambda *more, **others: nowhere)
    with pytest.raises(Exception, match="meta"):  # where nothing can be computed
        quick(place, tmp_path / "out")
    assert set(asked) == {"meta"}
    assert len(asked) >= 3  # what is set aside, the students, the first teacher


@pytest.mark.slow
def test_the_share_and_the_split_are_taken_once_for_all_rounds(place, tmp_path, no_page):
    """Of 6 images of each colour 2 are set aside; of the 4 that are left a half is learned from, in every round."""
    changes = {"share": 0.5, "split_seed": 7, "validation": 1 / 3}
    found = quick(place, tmp_path / "out", rounds=1, epochs=1, overrides=changes)
    assert found.labelled == 6
    configs = [config_of(found.run, k) for k in (0, 1)]
    assert [config["splits"] for config in configs] == [
        {"train": 6, "val": 6, "test": 9},
        {"train": 6 + found.rounds[1].labels.looked_at, "val": 6, "test": 9},
    ]
    opened = open_data(place / "labelled")
    _, aside = split_validation(opened.train, 1 / 3, seed=7)
    assert [config["digests"]["val"] for config in configs] == [source_digest(aside)] * 2
    assert configs[0]["training"]["share"] == configs[1]["training"]["share"] == 1


@pytest.mark.slow
def test_nothing_set_aside_is_nothing_set_aside_in_any_round(place, tmp_path, no_page):
    found = quick(place, tmp_path / "out", rounds=1, epochs=1, overrides={"validation": 0})
    assert [set(config_of(found.run, k)["splits"]) for k in (0, 1)] == [{"train", "test"}] * 2
    assert found.labelled == 18
    assert found.best == 1  # the last, as nothing tells which is better


@pytest.mark.slow
def test_the_labels_are_data_that_fit_takes(whole, tmp_path):
    """All 24 images, each of its colour; training takes some of them, validation the rest."""
    found = vitreous.fit(
        Path(whole.run) / "labels/final/labels.csv", model="F/4@16", epochs=1, workers=0, out=tmp_path / "fit"
    )
    assert found.classes == ("blue", "green", "red")
    assert found.images + found.validation.n == 24


@pytest.mark.slow
def test_a_moved_folder_is_finished_and_a_lost_page_is_written_again(place, tmp_path, no_page):
    """Renamed, so that nothing is where it was when it was trained."""
    before = quick(place, tmp_path / "before", rounds=1, epochs=1)
    out = (tmp_path / "before").rename(tmp_path / "out")
    for k in (0, 1):
        (out / f"round-{k}/report.html").touch()  # `no_page` wrote none
    heard = []
    again = quick(place, out, rounds=1, epochs=1, callbacks=Callbacks(message=heard.append))
    assert len(heard) == 1
    assert str(out) in heard[0]
    assert again.run == str(out)
    assert [one.run for one in again.rounds] == [str(out / "round-0"), str(out / "round-1")]
    assert [one.test for one in again.rounds] == [one.test for one in before.rounds]
    page = (out / "report.html").read_text()
    (out / "report.html").unlink()
    quick(place, out, rounds=1, epochs=1)
    assert (out / "report.html").read_text() == page.replace(str(tmp_path / "before"), str(out)).replace(
        "<h1>before<", "<h1>out<"
    ).replace("<title>before ", "<title>out ")
    with pytest.raises(UserError, match=rf"{out}: .*confidence=0\.3.* 0\.5"):
        quick(place, out, rounds=1, epochs=1, confidence=0.5)


@pytest.mark.slow
def test_stopped_and_repeated_equals_uninterrupted(place, whole, tmp_path, no_page):
    """In the first teacher, in the first student, in the second; and only with the same images."""
    labelled, unsorted = (shutil.copytree(place / name, tmp_path / name) for name in ("labelled", "unsorted"))
    for steps in (1, 4, 4):
        assert not quick(tmp_path, tmp_path / "out", callbacks=Callbacks(should_stop=stop_after(steps))).finished
    assert sorted(path.name for path in (tmp_path / "out").glob("round-*")) == ["round-0", "round-1", "round-2"]
    new = labelled / "train/red/new.png"
    Image.fromarray(pixels("red", 9999)).save(new)
    with pytest.raises(UserError, match=rf"{labelled}: .*{tmp_path / 'out'}"):
        quick(tmp_path, tmp_path / "out")
    new.unlink()
    (unsorted / "000.png").rename(tmp_path / "000.png")
    with pytest.raises(UserError, match=rf"{unsorted}: .*{tmp_path / 'out'}"):
        quick(tmp_path, tmp_path / "out")
    (tmp_path / "000.png").rename(unsorted / "000.png")
    assert quick(tmp_path, tmp_path / "out").finished
    weights = [
        {name: content for name, content in held(out).items() if not name.endswith("labels.csv")}
        for out in (tmp_path / "out", Path(whole.run))
    ]
    assert weights[0] == weights[1]  # labels.csv has the paths of the images


@pytest.mark.slow
def test_a_crash_while_labels_are_made_loses_nothing(place, whole, tmp_path, no_page, monkeypatch):
    """Before the first student has labels, between its training and the next, and before the last labels."""
    calls = []

    def crash_once(*args, **more):
        calls.append(None)
        if len(calls) in (1, 3, 5):
            raise RuntimeError("the power is gone")
        return label_images(*args, **more)

    for module in (labelling, study):
        monkeypatch.setattr(module, "label_images", crash_once)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            quick(place, tmp_path / "out")
    assert quick(place, tmp_path / "out").finished
    assert held(tmp_path / "out") == held(Path(whole.run))


PROGRAM = """
import vitreous, vitreous.training.train
vitreous.training.train.write_run_page = lambda *_: None
vitreous.self_train({labelled!r}, {unsorted!r}, out=out, rounds=2, epochs=4, workers=0, model="F/4@16", confidence=0.3,
    overrides={{"save_seconds": 0}})
"""


@pytest.mark.slow
def test_killed_it_ends_with_the_same_bits(processes, place, whole, tmp_path, no_page):
    """SIGKILL in the first teacher, in the first student and in the second; every step is saved."""
    program = PROGRAM.format(labelled=str(place / "labelled"), unsorted=str(place / "unsorted"))
    trained = []
    for checkpoints in (2, 4, 4):
        run_and_kill(processes, program, tmp_path / "out", checkpoints)
        trained.append(len(list((tmp_path / "out").glob("round-*"))))
    assert trained == [1, 2, 3]
    assert quick(place, tmp_path / "out", overrides={"save_seconds": 0}).finished
    assert held(tmp_path / "out") == held(Path(whole.run))


@pytest.mark.slow
def test_a_given_teacher_is_round_0(place, tmp_path, no_page):
    """Its classes are matched by name, in whatever order it has them; then it may go."""
    teacher = make_bundle(tmp_path / "teacher")
    ways = {"model": None, "student": "F/4@16", "rounds": 1, "epochs": 2, "teacher": teacher, "pseudo_labels": "hard"}
    stopped = quick(place, tmp_path / "out", **ways, callbacks=Callbacks(should_stop=stop_after(1)))
    assert not stopped.finished
    shutil.rmtree(teacher)
    found = quick(place, tmp_path / "out", **ways)
    assert found.rounds[0].images == 0
    assert found.rounds[0].test.accuracy == 1
    assert all(row["label"] == colour_of(row["path"]) for row in table(tmp_path / "out/labels/round-1"))


def test_a_teacher_of_other_classes_is_refused(place, tmp_path):
    teacher = make_bundle(tmp_path / "teacher", labels=("blue", "green", "pink"))
    with pytest.raises(UserError, match="'red'"):
        self_train(place / "labelled", place / "unsorted", teacher=teacher, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_students_start_from_given_weights_again(images, weights, tmp_path, no_page):
    """A classifier on frozen features first, of both kinds of images; then the upper half."""
    others = draw_images(tmp_path / "others", count=5, side=21)
    found = self_train(images, others, weights=weights, rounds=1, epochs=2, workers=0, out=tmp_path / "out")
    assert [one.validation.accuracy for one in found.rounds] == [1, 1]
    assert found.rounds[1].labels.taken == {"dark": 5, "light": 5}
    config = json.loads((tmp_path / "out/round-1/config.json").read_text())
    assert config["training"]["probe"]
    assert config["weights"] == json.loads((tmp_path / "out/round-0/config.json").read_text())["weights"]


@pytest.mark.slow
def test_a_page_about_the_kept_model(whole, tmp_path, monkeypatch):
    """The folder's own page stays."""
    monkeypatch.chdir(tmp_path)
    before = (Path(whole.run) / "report.html").read_bytes()
    assert vitreous.write_report(whole.run) == Path("out-report.html")
    assert (Path(whole.run) / "report.html").read_bytes() == before


@pytest.mark.slow
def test_images_of_one_class_only(place, tmp_path, no_page):
    draw_unsorted(tmp_path / "red", colours=("red",))
    heard = []
    found = self_train(
        place / "labelled",
        tmp_path / "red",
        out=tmp_path / "out",
        callbacks=Callbacks(message=heard.append),
        **{**QUICK, "rounds": 1},
    )
    assert found.rounds[1].labels.taken == {"blue": 0, "green": 0, "red": 3}  # a third of eight, rounded up
    assert any("blue" in line for line in heard)


REFUSED = (
    ({"unlabelled": "empty"}, "empty"),
    ({"unlabelled": "nowhere"}, "nowhere"),
    ({"unlabelled": "labelled"}, "labelled: .* 18 "),
    ({"labelled": "unsorted"}, "unsorted"),
    ({"rounds": 0}, "rounds=0: .* 1 .* 100"),
    ({"confidence": 1.5}, r"confidence=1\.5: .* 0 .* 1\b"),
    ({"pseudo_labels": "firm"}, "pseudo_labels='firm': .*soft, hard"),
    ({"student": "Q/16"}, "Q/16"),
    ({"budget": "1m"}, "budget and epochs"),
    ({"weights": "x", "student": "F/4@16", "model": None}, "student and weights"),
    ({"teacher": "x"}, "model and teacher"),
    ({"out": "unsorted/out"}, "unsorted/out"),
    ({"overrides": {"nothing": "1"}}, "nothing"),
)


def test_what_makes_no_sense_is_refused_and_leaves_nothing(place, tmp_path, monkeypatch, subtests):
    monkeypatch.chdir(place)
    (place / "empty").mkdir(exist_ok=True)
    before = sorted(place.rglob("*"))
    for more, named in REFUSED:
        given = {"labelled": "labelled", "unlabelled": "unsorted", "out": tmp_path / "out", **QUICK, **more}
        with subtests.test(named):
            with pytest.raises(UserError, match=named):
                self_train(given.pop("labelled"), given.pop("unlabelled"), **given)
            assert not (tmp_path / "out").exists()
            assert sorted(place.rglob("*")) == before


@pytest.mark.slow
def test_a_folder_of_another_kind_is_refused(place, whole, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/thesis.txt").write_text("years of work")
    rounds = [Path(whole.run) / f"round-{k}" for k in (0, 1)]
    with pytest.raises(UserError, match=r"thesis: .*thesis\.txt"):
        quick(place, tmp_path / "thesis")
    with pytest.raises(UserError, match=str(rounds[0])):
        quick(place, rounds[0])
    with pytest.raises(UserError, match=str(rounds[1])):
        vitreous.fit(place / "labelled", model="F/4@16", epochs=4, out=rounds[1])


def test_no_label_that_is_sure_enough(place, tmp_path, no_page):
    with pytest.raises(UserError, match="confidence=1"):
        quick(place, tmp_path / "out", confidence=1.0)
    assert (tmp_path / "out/round-0/bundle").is_dir()


def test_a_budget_is_divided_over_the_rounds(tmp_path):
    """What is left is shared by the rounds that are left: of 100 s a tenth is kept for the end, 3 s for writing and
    0.7 s for the end of the process, and 97 % of the rest are planned for; a late round gets a second."""
    request = SelfTrainRequest("labelled", "unsorted", rounds=3, budget="100s")
    meter = SimpleNamespace(seconds=0.0)
    deadline = Deadline("100s", 3.0, meter, World())
    context = labelling.SelfTrainContext(
        tmp_path, Runtime(0, World()), Callbacks(), request, None, None, 0, (), deadline
    )
    found = []
    for number, gone, earlier in ((0, 0.0, 0.0), (1, 30.0, 0.0), (2, 0.0, 60.0), (3, 95.0, 0.0)):
        meter.seconds = gone
        found.append(study.round_budget(replace(context, earlier_seconds=earlier), number))
    left = (86.3, 56.3, 26.3)
    assert found == [f"{0.97 * each / rounds:.1f}s" for each, rounds in zip(left, (4, 3, 2), strict=True)] + ["1.0s"]


@pytest.mark.slow
def test_a_finished_one_is_looked_at_again_and_can_be_overwritten(place, tmp_path, no_page):
    """Another image since: what changed is said, and what to do; its bundle is written again where it was lost."""
    labelled, unsorted = (shutil.copytree(place / name, tmp_path / name) for name in ("labelled", "unsorted"))
    out, given = tmp_path / "out", {"rounds": 1, "epochs": 1}
    before = quick(tmp_path, out, **given)
    kept = (out / "bundle/model.safetensors").read_bytes()
    shutil.rmtree(out / "bundle")
    for k in (0, 1):
        (out / f"round-{k}/report.html").touch()  # `no_page` wrote none
    assert quick(tmp_path, out, **given) == before
    assert (out / "bundle/model.safetensors").read_bytes() == kept
    Image.fromarray(pixels("red", 9999)).save(labelled / "train/red/new.png")
    with pytest.raises(UserError, match=rf"{labelled}: .*\b16 train .*\b15 .*{out} .*--overwrite.*--out"):
        quick(tmp_path, out, **given)
    (unsorted / "000.png").rename(tmp_path / "000.png")
    again = quick(tmp_path, out, **given, overwrite=True)
    assert (again.labelled, again.unlabelled) == (16, 23)
    shutil.rmtree(unsorted)
    for k in (0, 1):
        (out / f"round-{k}/report.html").touch()
    heard = []
    assert quick(tmp_path, out, **given, callbacks=Callbacks(message=heard.append)).labelled == 16
    assert str(unsorted) in heard[0]  # its data are gone, which is said


def test_an_interval_of_images_that_chose_the_round_is_not_printed(whole_result, capsys):
    """By test images it is; the JSON says which of the two it is."""
    for split, chose in (("test", False), ("val", True)):
        result = replace(whole_result, against_teacher=Paired(split, 9, 1, 4))
        vitreous.verbs.studies.SelfTrain("a", "b").show(result)
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "+33.3 points" in line)
        low, high = (f"{100 * value:+.1f}" for value in result.against_teacher.interval)
        assert (low in line and high in line) != chose
        assert ("optimistic" in line) == chose
        assert result.to_json()["against_teacher"]["chose_the_round"] == chose
