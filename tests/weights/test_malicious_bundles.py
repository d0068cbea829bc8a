"""Signed but malicious bundles: every digest in the manifest is right, and what the files say is not."""

import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from support.commands import check_refused, run_command
from vitreous import ViTConfig
from vitreous.config.bit import BiTConfig
from vitreous.config.data import Preprocess
from vitreous.config.efficientnet import EfficientNetConfig
from vitreous.config.stem import ConvStem
from vitreous.model.family import build_network
from vitreous.weights.bundle import save_bundle

CONFIG, WEIGHTS = "config.json", "model.safetensors"
HUGE = 10**30
DEEP = 10_000
"""Blocks; the most that a configuration may say."""

COUNTS = ("width", "depth", "heads", "mlp_width", "patch", "channels", "classes", "registers")
CHOICES = ("position", "position_scope", "position_resampling", "norm", "mlp", "pool", "classifier")
SHARES = ("norm_eps", "drop_path", "dropout", "patch_dropout")
SWITCHES = ("class_token", "distilled", "norm_after_pool", "qk_norm", "pad")

FIELDS = {
    "model": {
        **dict.fromkeys(COUNTS, ("16", 1.5, -1, 10**9, 2**62, HUGE, None, [], {}, True)),
        **dict.fromkeys(CHOICES, ("x", 3, None, ["x"])),
        **dict.fromkeys(SHARES, ("1e-6", -1, [], True, None, 1e300)),
        **dict.fromkeys(SWITCHES, (1, "true", None, [])),
        "layer_scale": ("x", [], True, 10**400),
        "image_size": (
            "12",
            [12],
            [12, 16, 3],
            [0, 16],
            [-4, 4],
            [4 * 10**9, 4 * 10**9],
            None,
            {},
            [None, 4],
            [4.5, 4],
        ),
        "sincos_grid": ("x", [1], [0, 0], [1, "x"]),
        "family": ("x", 3, [], None, "../../vit", "vit\n"),
        "colour": (1,),
    },
    "preprocess": {
        "size": ("12", [12], [0, 16], [-4, 8], [4 * 10**9, 4 * 10**9], None, {}, ["a", "b"], HUGE),
        "mean": ("0.5", [], [0.5], [0.5] * 4, ["a", "b", "c"], [None] * 3, [1e300] * 3, [[0.5]] * 3, 0.5),
        "std": ("0.5", [], [0, 0, 0], [-1, 1, 1], [1e-300] * 3, [1e300] * 3, [True] * 3, None),
        "crop": (0, -1, 1.5, "0.9", None, 1e-300, [], True),
        "interpolation": ("x", None, 3, ["bicubic"]),
        "resize": ("x", None, 3),
        "colour": (1,),
    },
}


def set_field(part, name, value):
    def change(section):
        section[part][name] = value

    return change


CASES = {
    f"{part}.{name}={value!r:.30}": (set_field(part, name, value), "")
    for part, wrong in FIELDS.items()
    for name, values in wrong.items()
    for value in values
}
# What else the section may say, and what the sentence then names.
WHOLE = {
    "format": ("1", None, [], 99, 1.5, -1, 0, HUGE, True),
    "model": (None, [], "vit", 3),
    "preprocess": (None, [], "mean=0.5", 3),
    "labels": (
        None,
        "abcde",
        {},
        {"a": 1},
        3,
        [1] * 5,
        [1, 2, 3, 4, 5],
        ["a"],
        ["a"] * 5,
        ["a"] * 6,
        [None] * 5,
        [["a"]] * 5,
        [],
    ),
    "training": (None, [], [1], "x", 3),
    "colour": (1,),
}
CASES |= {
    f"{name}={value!r:.30}": (lambda section, name=name, value=value: section.update({name: value}), CONFIG)
    for name, values in WHOLE.items()
    for value in values
}
CASES["an empty section"] = (lambda section: section.clear(), CONFIG)
CASES |= {
    f"without {part}.{name}": (lambda section, part=part, name=name: section[part].pop(name), name)
    for part, name in [("model", name) for name in ("width", "depth", "heads", "mlp_width", "patch")]
}
CASES |= {
    f"without {name}": (lambda section, name=name: section.pop(name), name if name != "format" else "")
    for name in ("format", "model", "preprocess", "labels", "training")
}


def deep(levels):
    return "[" * levels + "]" * levels


# config.json as text, from what it was.
TEXTS = {
    "deep nesting": lambda text: text.replace('"training": {}', f'"training": {deep(200_000)}'),
    "deep nesting of objects": lambda text: text.replace('"training": {}', '"training": ' + '{"a":' * 100_000),
    "NaN": lambda text: text.replace('"norm_eps": 1e-06', '"norm_eps": NaN'),
    "infinity": lambda text: text.replace('"norm_eps": 1e-06', '"norm_eps": Infinity'),
    "1e999": lambda text: text.replace('"norm_eps": 1e-06', '"norm_eps": 1e999'),
    "a number of 5,000 digits": lambda text: text.replace('"width": 16', f'"width": {"9" * 5000}'),
    "a key twice": lambda text: text.replace('"width": 16', '"width": 16, "width": 1000000'),
    "the section twice": lambda text: text.rstrip()[:-1] + ', "vitreous": {"format": 1}}',
    "no object": lambda text: "[1, 2]",
    "a text": lambda text: '"vitreous"',
    "half of it": lambda text: text[: len(text) // 2],
    "66 million bytes": lambda text: text.replace('"training": {}', '"training": {"a": "' + "x" * 70_000_000 + '"}'),
    "a hundred thousand labels": lambda text: text.replace('"ape"', ", ".join(['"ape"'] * 100_000)),
    "a byte that is no text": lambda text: text.replace("ape", "\udcff"),
    "a null byte": lambda text: "\0" + text,
    "UTF-16": lambda text: "\ufeff" + text,
}


def with_tensor(name, tensor):
    return lambda path: save_file({**load_file(path), name: tensor}, path)


def raw_header(header, data=b""):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return lambda path: path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def drop(path):
    tensors = load_file(path)
    del tensors["blocks.1.mlp.fc2.bias"]
    save_file(tensors, path)


NORM = "blocks.0.norm1.weight"
TENSORS = {
    "one missing": drop,
    "one too many": with_tensor("extra", torch.zeros(3)),
    "wrong shape": with_tensor(NORM, torch.zeros(17)),
    "too many axes": with_tensor(NORM, torch.zeros(16, 1, 1)),
    "no axis": with_tensor(NORM, torch.zeros(())),
    "empty": with_tensor(NORM, torch.zeros(0)),
    "int8": with_tensor(NORM, torch.zeros(16, dtype=torch.int8)),
    "int64": with_tensor(NORM, torch.zeros(16, dtype=torch.int64)),
    "bool": with_tensor(NORM, torch.zeros(16, dtype=torch.bool)),
    "complex": with_tensor(NORM, torch.zeros(16, dtype=torch.complex64)),
    "NaN": with_tensor(NORM, torch.full((16,), torch.nan)),
    "one NaN": with_tensor(NORM, torch.tensor([1.0] * 15 + [torch.nan])),
    "infinity": with_tensor(NORM, torch.full((16,), torch.inf)),
    "half-precision infinity": with_tensor(NORM, torch.full((16,), -torch.inf, dtype=torch.float16)),
    "too large for float32": with_tensor(NORM, torch.full((16,), 1e300, dtype=torch.float64)),
    "a name with line ends": with_tensor("a\nb\nvitreous: all is well.", torch.zeros(3)),
    "a name of a million letters": with_tensor("a" * 1_000_000, torch.zeros(3)),
    "nothing in it": lambda path: save_file({}, path),
    "an empty file": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("Dear reader, this is a letter."),
    "a page": lambda path: path.write_text("<!DOCTYPE html><title>404</title>"),
    "a pickle": lambda path: torch.save({"a": torch.zeros(3)}, path),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x" * 100),
    "a header of exabytes": lambda path: path.write_bytes(b"\xff" * 7 + b"\x7f{}"),
    "a header of 100 MB that is not there": lambda path: path.write_bytes((10**8 - 1).to_bytes(8, "little") + b"{}"),
    "terabytes in the header": raw_header({NORM: {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}),
    "a shape that overflows": raw_header({NORM: {"dtype": "F32", "shape": [2**62, 8], "data_offsets": [0, 0]}}),
    "negative offsets": raw_header({NORM: {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}),
    "offsets beyond": raw_header({NORM: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
    "a deep header": raw_header(b'{"a":' * 50_000),
    "no dtype": raw_header({NORM: {"shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    "an unknown dtype": raw_header({NORM: {"dtype": "F7", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    "a header that is a list": raw_header([1, 2]),
}


# The same for the other families: a field, and values that it cannot have beside those tensors.
COMMON = {
    "image_size": ("12", [12], [0, 16], [4.5, 4], None, {}),
    "channels": ("3", 1.5, -1, 0, 2**62, HUGE, None),
    "classes": ("5", -1, 10**9, HUGE, None),
    "family": ("vit", "x"),
    "colour": (1,),
}
OTHER_FAMILIES = {
    "bit": {
        "depths": (3, "1", [], [0, 1], [1, "1"], [10**9, 1], [1, DEEP], [1] * 10**5, [2**62], None, {}, [[1]]),
        "width": ("1", 0, -0.5, 0.3, 1e300, 64.0, [], None, True, HUGE),
        "root": ("5x5", 7, None, []),
        **COMMON,
    },
    "efficientnet": {
        "width": ("1", 0, -1, 1e300, 99.0, [], None, True, HUGE),
        "depth": ("1", 0, -1, 1e300, 99.0, [], None, True, HUGE),
        "padding": ("valid", 3, None),
        **dict.fromkeys(("norm_eps", "dropout", "drop_path"), ("0.1", -1, [], True, None, 1e300)),
        **COMMON,
    },
    "hybrid": {
        "stem": (
            *("resnet", 3, [], {"depths": [10**9]}, {"depths": [1] * 10**5}, {"depths": [DEEP] * 8}, {"width": 1e300}),
            *(
                {"widths": []},
                {"widths": [HUGE]},
                {"widths": [10**9]},
                {"widths": ["64"]},
                {"widths": [64], "depths": []},
            ),
            *({"colour": 1}, {"widths": None}, None),
        ),
        "attention": ("local", 3, None),
        "window": (3, "3", 0, HUGE, [3]),
    },
}


def write_manifest(folder):
    """As anybody can, who wants to: by hand."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(folder.iterdir())
        if path.name != "manifest.json"
    }
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": files}, indent=2) + "\n")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A good bundle of each family in a folder of its name, and an image to ask about."""
    root = tmp_path_factory.mktemp("bundles")
    labels = ("ape", "bee", "cat", "dog", "elk")
    vit = {"width": 16, "heads": 4, "mlp_width": 24, "classes": 5}
    size = {"image_size": (32, 32), "classes": 5}
    configs = {
        "vit": ViTConfig(**vit, depth=2, patch=4, image_size=(12, 16)),
        "bit": BiTConfig(depths=(1, 1), width=0.5, **size),
        "efficientnet": EfficientNetConfig(width=0.25, depth=0.1, **size),
        "hybrid": ViTConfig(stem=ConvStem((8, 8)), **vit, depth=1, patch=8, image_size=(32, 32)),
    }
    for name, config in configs.items():
        save_bundle(root / name, build_network(config), Preprocess(size=config.image_size), labels)
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(root / "image.png")
    return root


@pytest.fixture
def predict(bundles):
    return lambda bundle: run_command("predict", bundle, bundles / "image.png")


@pytest.fixture
def copies(bundles, tmp_path):
    """Copies of a bundle, one after the other, each called `b`."""
    numbers = itertools.count()
    return lambda family="vit": Path(shutil.copytree(bundles / family, tmp_path / str(next(numbers)) / "b"))


@pytest.fixture
def refused(predict):
    """Sign the bundle as it now is, and expect that it is refused with a sentence that names these."""

    def check(bundle, *names):
        write_manifest(bundle)
        check_refused(predict(bundle), *names)

    return check


def test_the_originals_are_good(predict, copies):
    for family in ("vit", *OTHER_FAMILIES):
        bundle = copies(family)
        write_manifest(bundle)
        assert predict(bundle).status == 0


@pytest.mark.slow
def test_a_hostile_section(subtests, copies, refused):
    bundle = copies()
    original = (bundle / CONFIG).read_text()
    for name, (change, names) in CASES.items():
        with subtests.test(name):
            config = json.loads(original)
            change(config["vitreous"])
            (bundle / CONFIG).write_text(json.dumps(config))
            refused(bundle, "b/", names)


@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_a_hostile_section_of_another_family(subtests, copies, refused, family):
    bundle = copies(family)
    original = (bundle / CONFIG).read_text()
    for name, values in OTHER_FAMILIES[family].items():
        for value in values:
            with subtests.test(f"{name}={value!r:.40}"):
                config = json.loads(original)
                config["vitreous"]["model"][name] = value
                (bundle / CONFIG).write_text(json.dumps(config))
                refused(bundle, "b/")


@pytest.mark.slow
def test_a_hostile_config(subtests, copies, refused):
    bundle = copies()
    original = (bundle / CONFIG).read_text()
    for name, change in TEXTS.items():
        with subtests.test(name):
            changed = change(original)
            assert changed != original
            encoding = "utf-16" if name == "UTF-16" else "utf-8"
            (bundle / CONFIG).write_bytes(changed.encode(encoding, "surrogateescape"))
            refused(bundle, "b/")


def test_hostile_tensors(subtests, copies, refused):
    for name, change in TENSORS.items():
        with subtests.test(name):
            bundle = copies()
            change(bundle / WEIGHTS)
            refused(bundle, WEIGHTS)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def link(target):
    def make(path):
        path.unlink()
        path.symlink_to(target)

    return make


def folder(path):
    path.unlink()
    path.mkdir()


NO_FILES = {
    "a pipe": pipe,
    "a device": link("/dev/zero"),
    "a loop": link("model.safetensors"),
    "nowhere": link("/nowhere"),
    "a folder": folder,
}


def test_what_is_no_file(subtests, predict, copies):
    for name, change in NO_FILES.items():
        for file in (WEIGHTS, CONFIG, "manifest.json", "README.md"):
            with subtests.test(f"{file}: {name}"):
                bundle = copies()
                write_manifest(bundle)
                change(bundle / file)
                check_refused(predict(bundle), "b")
