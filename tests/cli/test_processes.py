"""The command as a process of its own: exit status, standard output and standard error of every verb."""

import json
import shlex
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from support.colours import make_bundle, make_images
from vitreous.cli import main, verb_table

COMMAND = [sys.executable, "-m", "vitreous"]

pytestmark = pytest.mark.slow


def run(*words):
    done = subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("bundle") / "b")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images") / "i")


def test_each_verb_refuses_an_unknown_option(subtests):
    for verb in verb_table():
        with subtests.test(verb):
            status, stdout, stderr = run(*verb.split(), "--zzzz")
            assert (status, stdout, stderr.count("\n")) == (2, "", 1)
            assert stderr.startswith("vitreous: --zzzz: ")
            assert f"`vitreous {verb} --help`" in stderr


def test_a_success(bundle, images):
    status, stdout, stderr = run("models", "Ti/16", "--json")
    assert (status, [row["name"] for row in json.loads(stdout)], stderr) == (0, ["Ti/16"], "")
    status, stdout, stderr = run("predict", bundle, images, "--json")
    assert (status, stderr) == (0, "")
    labels = [json.loads(line)["prediction"] for line in stdout.splitlines()]
    assert labels == ["blue"] * 4 + ["green"] * 4 + ["red"] * 4


def test_a_success_in_part_and_a_mistake(bundle, images, tmp_path):
    (tmp_path / "bad.png").touch()
    status, stdout, stderr = run("predict", bundle, images / "red/0.png", tmp_path / "bad.png")
    assert (status, stdout.count("\n"), stderr.count("\n")) == (1, 1, 1)
    assert stderr.startswith(f"vitreous: {tmp_path}/bad.png: ")
    status, stdout, stderr = run("predict", tmp_path / "none", images)
    assert (status, stdout) == (2, "")
    assert stderr.startswith(f"vitreous: {tmp_path}/none: ")


def test_a_reader_that_wants_no_more_is_not_an_error_to_shout_about(bundle, images):
    command = shlex.join([*COMMAND, "predict", str(bundle), str(images), "--batch-size", "1"])
    done = subprocess.run(f"{command} | head -n 1", shell=True, capture_output=True, text=True, timeout=300)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_the_installed_command_is_the_same_function():
    (command,) = entry_points(group="console_scripts", name="vitreous")
    assert command.load() is main
