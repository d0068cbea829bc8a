"""A signal to the process group at every stage of every verb: it ends soon, with its status, and nothing is lost.

The moments are chosen by the code that runs then, not by a clock: what is named sends the signal when it is called.
"""

import json

import pytest

from support.commands import MB, check_ended_well
from support.greys import draw_images, make_weights
from vitreous.verbs.fit import fit

SIGNALLING = """
import os, pkgutil, signal
from functools import wraps
from importlib import import_module
from pathlib import Path

def signalling(function):
    @wraps(function)
    def first_signals(*args, **kwargs):
        global left
        left -= 1
        if left == 0 and not Path({flag!r}).exists():  # in one process only
            Path({flag!r}).touch()
            os.killpg(os.getpgrp(), signal.{signal})
        return function(*args, **kwargs)
    return first_signals

if {page!r} == "none":  # plots take most of the time
    import vitreous.training.train
    vitreous.training.train.write_run_page = lambda *_: None
left = {call}
place, name = pkgutil.resolve_name({where!r}), {name!r}
setattr(place, name, signalling(getattr(place, name)))
from vitreous.cli import main
main({argv!r})
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return draw_images(tmp_path_factory.mktemp("data") / "images", count=16)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return make_weights(tmp_path_factory.mktemp("weights") / "bundle")


@pytest.fixture(scope="module")
def words(images, weights):
    return [
        "fit",
        images,
        "--weights",
        weights,
        "--epochs",
        "3",
        "--overrides",
        "batch_size=8",
        "--overrides",
        "save_seconds=0",
    ]


def kept(run):
    """All that a training leaves and that no clock is in."""
    last = max(run.glob("checkpoints/step-*"))
    files = [run / "metrics.jsonl", run / "bundle/model.safetensors", *sorted(last.glob("*.safetensors"))]
    result = json.loads((run / "result.json").read_text())
    return [last.name, result["validation"], result["metrics"], *(path.read_bytes() for path in files)]


@pytest.fixture(scope="module")
def whole(processes, words, tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    assert run_code(processes, run, "os", "getpid", [*words, "--workers", 2, "--out", run]).status == 0
    return kept(run)


def run_code(processes, flag, where, name, argv, call=0, signal="SIGTERM", page="none"):
    fields = {"flag": str(flag), "where": where, "name": name, "argv": [str(word) for word in argv]}
    return processes(code=SIGNALLING.format(**fields, call=call, signal=signal, page=page))


def interrupted(processes, flag, where, name, *argv, call=1, **more):
    outcome = run_code(processes, flag, where, name, argv, call, **more)
    assert flag.exists(), f"{name} was not called: {outcome.stderr}"
    check_ended_well(outcome, seconds=60, memory=600 * MB)
    return outcome


STAGES = {
    "opening the data": ("vitreous.training.labelled", "open_dataset", 1),
    "decoding": ("PIL.Image", "open", 5),
    "features": ("vitreous.training.measuring", "compute_features", 1),
    "the classifier": ("vitreous.training.start", "fit_linear", 1),
    "the configuration": ("vitreous.training.folder:RunConfig", "write", 1),
    "the first evaluation": ("vitreous.training.loop:Loop", "_evaluate", 1),
    "a step": ("torch.nn.utils", "clip_grad_norm_", 2),
    "an evaluation": ("vitreous.training.loop:Loop", "_evaluate", 3),
    "within an evaluation": ("vitreous.objectives.supervised:Classification", "evaluate", 4),
    "a log line": ("vitreous.training.loop:Loop", "_log", 6),
    "saving": ("vitreous.training.checkpoint", "save_checkpoint", 2),
    "replacing a folder": ("vitreous.storage.files", "replace_folder", 3),
    "the last evaluation": ("vitreous.training.loop:Loop", "_evaluate", 10),
    "measuring": ("vitreous.training.measuring", "score_classes", 1),
    "the bundle": ("vitreous.training.train", "save_bundle", 1),
    "the result": ("vitreous.training.train", "write_file", 1),
    "the report": ("vitreous.training.page", "page", 1),
}


SAMPLE = ("decoding", "a step", "within an evaluation", "saving", "the bundle", "the report")


@pytest.mark.parametrize(
    "stage",
    [pytest.param(stage, marks=pytest.mark.slow if stage in SAMPLE else pytest.mark.exhaustive) for stage in STAGES],
)
def test_a_training_goes_on_to_the_same_bits(processes, words, whole, tmp_path, stage):
    where, name, call = STAGES[stage]
    run, page = tmp_path / "run", "page" if stage == "the report" else "none"
    command = [*words, "--workers", 2, "--out", run]
    outcome = interrupted(processes, tmp_path / "flag", where, name, *command, call=call, page=page)
    assert outcome.status == 143, outcome.stderr
    assert (outcome.stdout or outcome.stderr).endswith(".\n"), "the last word is a sentence, not a progress line"
    again = run_code(processes, tmp_path / "flag", where, name, command, page=page)
    check_ended_well(again, seconds=60, memory=600 * MB)
    assert again.status == 0, again.stderr
    assert kept(run) == whole


STATUSES = {"SIGINT": 130, "SIGHUP": 129, "SIGTERM": 143}


@pytest.mark.slow
@pytest.mark.parametrize("signal", STATUSES)
def test_the_status_says_which_signal(processes, words, tmp_path, signal):
    place, run = ("vitreous.training.loop", "train_step"), tmp_path / "run"
    options = ["--out", run, "--workers", 0]
    outcome = interrupted(processes, tmp_path / "flag", *place, *words, *options, call=2, signal=signal)
    assert outcome.status == STATUSES[signal]
    assert str(run) in outcome.stdout, "where everything is saved"
    assert (run / "checkpoints/step-00000002").is_dir(), "the step that was being taken"


def test_pretraining_stops_too(processes, images, tmp_path):
    run = tmp_path / "run"
    words = ["pretrain", images, "--model", "P/4@16", "--epochs", 1, "--workers", 2, "--out", run]
    outcome = interrupted(processes, tmp_path / "flag", "vitreous.training.loop", "train_step", *words)
    assert outcome.status == 143
    assert str(run) in outcome.stdout
    assert list(run.glob("checkpoints/step-*"))


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_a_comparison_stops_in_a_cell(processes, images, tmp_path, signal):
    words = ["compare", images, "--models", "F/4@16", "--budget", "1h", "--workers", 0, "--out", tmp_path / "out"]
    place = ("vitreous.training.loop", "train_step")
    outcome = interrupted(processes, tmp_path / "flag", *place, *words, signal=signal, call=2)
    assert outcome.status == STATUSES[signal], outcome.stderr
    assert outcome.stdout.endswith(".\n")
    assert list((tmp_path / "out").rglob("checkpoints/step-*"))


VERBS = {
    "compare": ["DATA", "--models", "F/4@16", "--budget", "9h", "--workers", "2", "--out", "compared"],
    "transfer": ["MODEL", "--tasks", "DATA", "--protocols", "fewshot-5", "--workers", "2", "--out", "transferred"],
    "evaluate": ["MODEL", "DATA", "--workers", "2"],
    "probe": ["MODEL", "DATA", "--workers", "2"],
    "analyze": ["MODEL", "--data", "DATA", "--workers", "2", "--out", "analysis"],
    "predict": ["MODEL", "DATA"],
    "inspect": ["DATA"],
    "explain": ["MODEL", "DATA", "--out", "maps"],
    "score-explanations": ["MODEL", "DATA"],
    "walkthrough": ["MODEL", "IMAGE", "--out", "page.html"],
    "plot-weights": ["MODEL", "--data", "DATA", "--out", "plots"],
}


@pytest.fixture(scope="module")
def model(images, weights, tmp_path_factory):
    """A bundle that knows the images' classes."""
    run = tmp_path_factory.mktemp("trained") / "run"
    fit(images, weights=weights, epochs=1, out=run, workers=0)
    return run / "bundle"


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
def test_other_verbs_end_at_once(subtests, processes, model, images, tmp_path, signal):
    known = {"MODEL": model, "DATA": images, "IMAGE": images / "dark/0.png"}
    for verb, words in VERBS.items():
        with subtests.test(verb):
            out = tmp_path / verb
            out.mkdir()
            argv = [known.get(word, out / word if "." in word or word.isalpha() else word) for word in words]
            outcome = interrupted(processes, out / "flag", "PIL.Image", "open", verb, *argv, signal=signal)
            assert outcome.status == STATUSES[signal], outcome.stderr
            assert "Error" not in outcome.stderr
