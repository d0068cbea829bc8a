"""Whatever a notebook gives to a public function: an answer, or a sentence that names the argument."""

import inspect
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from support.colours import make_bundle, make_images
from vitreous import UserError
from vitreous.config.data import Augment, MultiCrop, Preprocess
from vitreous.config.objective import Dino, Distill, Mae, Supervised, TokenLabel
from vitreous.config.train import Optimizer

VALUES = {
    "None": None,
    "True": True,
    "zero": 0,
    "negative": -1,
    "huge": 10**30,
    "unprintable": 10**5000,
    "fraction": 1.5,
    "nan": float("nan"),
    "infinity": float("inf"),
    "empty": "",
    "blank": "  ",
    "word": "x",
    "long": "x" * 5000,
    "long name": "x" * 300,
    "null": "a\0b",
    "bytes": b"x",
    "list": [],
    "list of None": [None],
    "deep list": [[["x"]]],
    "tuple": (1, "x", None),
    "dict": {},
    "odd dict": {1: object()},
    "set": {1, 2},
    "object": object(),
    "function": lambda: 3,
    "class": int,
    "path": Path("nowhere"),
    "NumPy integer": np.int64(-3),
    "NumPy nan": np.float32("nan"),
    "array": np.zeros((2, 2)),
    "tensor": torch.zeros(2),
    "generator": iter(["x"]),
}
"""What annotations and sense forbid somewhere; nothing on the disk is called so."""
NAMED = {"None", "object", "set", "class", "deep list", "odd dict"}
"""Of these at least, the sentence must name the argument where no annotation allows them."""
GIVEN = {
    **dict.fromkeys(
        ("source", "model", "data", "run", "image", "images", "bundle", "labelled", "unlabelled"), "nowhere"
    ),
    "out": "out",
    "to": "timm",
    "models": ["nowhere"],
    "name": "F/7@28",
}
"""What the other arguments are: right in their type, so that whatever is let through ends at "nowhere"."""
CLASSES = {"Model", "UserError", "ViTConfig"}


def functions():
    for name in vitreous.__all__:
        if name not in CLASSES:
            yield name, getattr(vitreous, name)


def parameters(function):
    owner = function.__init__ if inspect.isclass(function) else function
    return {
        name: parameter
        for name, parameter in inspect.signature(owner).parameters.items()
        if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    }


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        yield


def answer(function, *args, **given):
    """What a call gives, all of it; or the sentence that it ends with."""
    try:
        found = function(*args, **given)
        return list(found) if inspect.isgenerator(found) else found
    except UserError as error:
        told = error
    assert 0 < len(str(told)) < 1000
    assert "\n" not in str(told)
    return told


@contextmanager
def naming(value):
    """Within, whatever goes wrong says of which value; a subtest for each would be ten thousand."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"given: {value}")
        raise


def required(name, function):
    """The arguments that a call needs, none of which names anything on the disk."""
    if name == "get_data":
        return dict.fromkeys(
            (each for each, one in parameters(function).items() if one.default is one.empty), "nowhere"
        )
    given = {each: GIVEN[each] for each, one in parameters(function).items() if one.default is one.empty}
    if name == "ViT":
        given["model"] = GIVEN["name"]
    if name == "transfer":  # whose tasks are all of VTAB by default
        given["tasks"] = ["nowhere"]
    return given


def test_a_wrong_argument(subtests):
    for name, function in functions():
        given = required(name, function)
        for parameter in parameters(function):
            with subtests.test(f"{name}({parameter}=...)"):
                for value in VALUES:
                    with naming(value):
                        found = answer(function, **{**given, parameter: VALUES[value]})
                        if value in NAMED and isinstance(found, UserError):
                            assert parameter in str(found) or "nowhere" in str(found)


CONFIGS = {
    vitreous.ViTConfig: {"width": 8, "depth": 1, "heads": 2, "mlp_width": 8, "patch": 4},
    **{kind: {} for kind in (Preprocess, Augment, MultiCrop, Optimizer, Supervised, Distill, TokenLabel, Mae, Dino)},
}


def test_a_wrong_field(subtests):
    for kind, given in CONFIGS.items():
        for field in (each.name for each in fields(kind)):
            with subtests.test(f"{kind.__name__}({field}=...)"):
                for value in VALUES:
                    with naming(value):
                        found = answer(kind, **{**given, field: VALUES[value]})
                        if value in ("nan", "infinity", "object", "array"):
                            assert isinstance(found, UserError), "no field of a configuration is any of these"
                        if isinstance(found, UserError):
                            assert field in str(found)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return vitreous.load(make_bundle(tmp_path_factory.mktemp("model") / "b"))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images") / "p", count=1)


def test_a_wrong_argument_of_a_model_that_is_there(model, images, subtests):
    for name in ("predict", "explain", "evaluate"):
        first = {"data": images} if name == "evaluate" else {"image": images / "red" / "0.png"}
        for parameter in parameters(getattr(vitreous.Model, name)):
            with subtests.test(f"{name}({parameter}=...)"):
                for value in VALUES:
                    with naming(value):
                        answer(getattr(model, name), **{**first, parameter: VALUES[value]})


@pytest.mark.parametrize("method", ["predict", "explain"])
def test_every_kind_of_image_gets_the_same_prediction(model, images, method):
    path = images / "green" / "0.png"
    array = np.asarray(Image.open(path))
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    found = [
        getattr(model, method)(kind) for kind in (path, str(path), path.read_bytes(), Image.open(path), array, tensor)
    ]
    assert {one.label for one in found} == {"green"}
    assert len({round(one.score, 6) for one in found}) == 1


NO_IMAGE = {
    "nothing": ([], "."),
    "channels last": (torch.zeros(8, 8, 3, dtype=torch.uint8), r"\(8, 8, 3\)"),
    "a batch": (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), r"\(2, 3, 4, 4\)"),
    "floats": (torch.zeros(3, 4, 4), "float32"),
    "a batch of NumPy": (np.zeros((2, 4, 4, 3), np.uint8), r"\(2, 4, 4, 3\)"),
    "floats of NumPy": (np.zeros((4, 4, 3)), "float64"),
    "an empty name": ("", "image=''"),
    "a list with an empty name": ([""], r"image\[0\]=''"),
    "a list with None": (["a.png", None], r"image\[1\]=None"),
    "a folder": (".", r"^\.: "),
}


def test_what_is_no_image(model, subtests):
    for name, (given, says) in NO_IMAGE.items():
        with subtests.test(name):
            with pytest.raises(UserError, match=says):
                model.predict(given)
            if not isinstance(given, list | str):
                with pytest.raises(UserError, match=type(given).__name__.lower()[-5:]):
                    model.explain(given)


def test_a_misspelt_argument_and_a_missing_one():
    with pytest.raises(UserError, match=r"fit\(epoch=...\): .*\bepochs\b"):
        vitreous.fit("x", epoch=3)
    with pytest.raises(UserError, match=r"fit\(\): .*'data'"):
        vitreous.fit()


def test_numbers_of_numpy_are_numbers(model, images):
    found = model.predict(images / "red" / "0.png", top_k=np.int64(2))
    assert len(found.top) == 2
    assert vitreous.ViT("F/7@28", classes=np.int32(4)).config.classes == 4
    assert model.explain(images / "red" / "0.png", method="attention", layer=np.int64(0)).layers == (0,)
