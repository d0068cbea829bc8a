"""What a run folder keeps is read back as it was; of another version, or damaged, it is refused with one sentence."""

import json
import shutil
from pathlib import Path

import pytest

from support.greys import draw_images, make_weights
from support.greys import quick_fit as quick
from vitreous import UserError
from vitreous.cli import main
from vitreous.training.folder import read_config
from vitreous.training.result import read_result
from vitreous.verbs.predict import predict


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Images, weights, and a run that was trained with them."""
    root = tmp_path_factory.mktemp("place")
    quick(draw_images(root / "images"), make_weights(root / "weights"), root / "run")
    return root


@pytest.fixture
def run(place, tmp_path):
    """A copy of the run, to be spoilt."""
    return shutil.copytree(place / "run", tmp_path / "run")


def rewrite(path, change):
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def as_before(config):
    """The layout of config.json before an objective was configuration."""
    training = config["training"]
    for name in ("label_smoothing", "class_weights"):
        training[name] = training["objective"][name]
    training["tokens"] = training["objective"]["keep_schedule"]
    training["blend"] = training.pop("wise_ft_alpha")
    training["optimizer"]["rate"] = training["optimizer"].pop("learning_rate")
    del training["objective"], training["model"]["family"]
    config["parts"], config["images"] = config.pop("splits"), config.pop("digests")
    del config["weights"], config["replans"]


def test_what_is_written_is_read_back(place):
    config = read_config(place / "run")
    assert config.splits == {"train": 24}
    assert config.request.epochs == 2
    assert config.training.objective.kind == "supervised"
    assert config.training.model.classes == 2
    config.write(place)
    assert (place / "config.json").read_text() == (place / "run/config.json").read_text()
    result = read_result(place / "run")
    assert json.loads(json.dumps(result.to_json())) == json.loads((place / "run/result.json").read_text())


def test_a_count_of_parts_is_read_where_it_said_nothing(run):
    """`accumulate`, until version 0.1: 1 is a whole batch; other counts belong to the version that began the run."""
    for parts in (1, 2):
        rewrite(run / "config.json", lambda config, parts=parts: config["training"].update(accumulate=parts))
        if parts == 1:
            assert read_config(run).training.micro_batch is None
        else:
            with pytest.raises(UserError, match=r"config\.json"):
                read_config(run)


def test_the_result_of_a_folder_that_was_moved_names_where_it_is(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "elsewhere")
    result = read_result(tmp_path / "elsewhere")
    assert result.run == str(tmp_path / "elsewhere")
    assert Path(result.bundle, "model.safetensors").is_file()
    assert Path(result.bundle).parent == tmp_path / "elsewhere"


def test_a_run_of_the_old_version_is_refused_with_one_sentence(place, run, capsys):
    rewrite(run / "config.json", as_before)
    fit = ["fit", str(place / "images"), "--weights", str(place / "weights"), "--epochs", "2", "--out", str(run)]
    for words in (fit, ["report", str(run)]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"vitreous: {run / 'config.json'}: ")
        assert err.count("\n") == 1
    (prediction,) = predict(run, place / "images/dark/0.png")  # its bundle is as good as ever
    assert prediction.label in ("dark", "light")


def test_a_result_of_the_old_version_is_refused_with_one_sentence(place, run):
    def old(result):
        result["validation"] = {"n": 2, "top1": 0.5}
        result["probe"] = {"accuracy": 0.5, "seconds": 1.0}
        del result["metrics"]

    rewrite(run / "result.json", old)
    with pytest.raises(UserError, match=r"result\.json") as error:
        quick(place / "images", place / "weights", run)
    assert str(error.value).count("\n") == 0
    (run / "result.json").unlink()
    assert quick(place / "images", place / "weights", run).finished


REQUEST = '{"request": {"data": "x"}, "classes": [], "replans": [], "probe": null, "training": '
DAMAGE = {
    "empty": "",
    "cut short": '{"request": {"data"',
    "a list": "[]",
    "nothing": "{}",
    "no request": '{"request": null}',
    "another request": '{"request": {"colour": "red"}, "training": {}}',
    "no training": f"{REQUEST} null}}",
    "a training that is a list": f"{REQUEST} []}}",
    "a training in words": f'{REQUEST} {{"model": "B/16", "objective": 3, "preprocess": 0, "augment": 0, '
    '"optimizer": 0}}',
}


def test_damage_is_a_sentence(tmp_path, subtests):
    for title, text in DAMAGE.items():
        for file, read in (("config.json", read_config), ("result.json", read_result)):
            (tmp_path / file).write_text(text)
            with subtests.test(title, file=file), pytest.raises(UserError, match=f"{file}: "):
                read(tmp_path)
