"""What is no checkpoint, or not a whole or a harmless one, is refused with one clear sentence; nothing in it runs."""

import argparse
import io
import os
import pickle
import re
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from support.published import google, timm_like
from support.tiny_models import random_model
from vitreous import UserError
from vitreous.weights.source import open_weights


def refused(path, names=None):
    """With one sentence that matches these names besides the file's."""
    with pytest.raises(UserError, match=names) as caught:
        open_weights(path)
    assert str(path.name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_a_checkpoint(subtests, tmp_path):
    for name in ("a.txt", "a.safetensors", "a.pth", "a.npz", "a.bin", "noending"):
        with subtests.test(name):
            (tmp_path / name).write_text("Dear reader, this is a letter.\n" * 10)
            refused(tmp_path / name)
            (tmp_path / name).write_bytes(b"")
            refused(tmp_path / name)


def test_a_page_and_a_pointer_in_place_of_the_file(tmp_path):
    (tmp_path / "w.pth").write_text("<!DOCTYPE html><title>404</title>")
    refused(tmp_path / "w.pth")
    (tmp_path / "w.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    refused(tmp_path / "w.safetensors", "git lfs pull")


def test_nothing_there(tmp_path):
    refused(tmp_path / "none.pth")
    refused(tmp_path / "none")


def test_a_truncated_file(subtests, tmp_path):
    for kind in ("safetensors", "pth", "old pth", "npz"):
        path = tmp_path / f"w.{kind.split()[-1]}"
        if kind == "safetensors":
            save_file(timm_like(), path)
        elif kind == "npz":
            np.savez(path, **google())
        else:
            torch.save(timm_like(), path, _use_new_zipfile_serialization=kind == "pth")
        content = path.read_bytes()
        for kept in (0.1, 0.5, 0.95):
            with subtests.test(f"{kept} of {kind}"):
                path.write_bytes(content[: int(kept * len(content))])
                refused(path)


def test_a_text_model(tmp_path):
    bert = {
        "bert.embeddings.word_embeddings.weight": torch.zeros(10, 4),
        "bert.encoder.layer.0.attention.self.query.weight": torch.zeros(4, 4),
    }
    save_file(bert, tmp_path / "model.safetensors")
    refused(tmp_path / "model.safetensors", "bert.embeddings.word_embeddings.weight")


def test_a_convolutional_network(tmp_path):
    torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7), "bn1.weight": torch.zeros(64)}, tmp_path / "resnet50.pth")
    refused(tmp_path / "resnet50.pth", "conv1.weight")


class Bomb:
    """A pickle that, if it were obeyed, would make a folder."""

    def __init__(self, place):
        self.place = str(place)

    def __reduce__(self):
        return os.mkdir, (self.place,)


def old_style(content):
    """torch's older format: three pickles of greetings, then the content."""
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def test_a_pickle_with_code_in_it_does_not_run(subtests, tmp_path):
    trap = tmp_path / "trap"
    bomb = Bomb(trap)
    torch.save(bomb, tmp_path / "zip.pth")
    (tmp_path / "old.pth").write_bytes(old_style(bomb))
    (tmp_path / "plain.pth").write_bytes(pickle.dumps({"model": bomb}))
    torch.save({"model": timm_like(), "args": bomb}, tmp_path / "inside.pth")
    np.savez(tmp_path / "array.npz", **google(), extra=np.array([bomb], dtype=object))
    for path in list(tmp_path.iterdir()):
        with subtests.test(path.name):
            refused(path)
            assert not trap.exists()
    torch.load(tmp_path / "zip.pth", weights_only=False)
    assert trap.exists(), "the trap is a real one"


def test_options_of_a_training_are_harmless_and_other_objects_are_not(tmp_path):
    options = argparse.Namespace(lr=0.1, names=["a"], nested={"b": (1, 2.0)})
    torch.save({"model": timm_like(), "args": options}, tmp_path / "good.pth")
    open_weights(tmp_path / "good.pth")
    torch.save({"model": timm_like(), "path": Path("x")}, tmp_path / "odd.pth")
    refused(tmp_path / "odd.pth", r"pathlib.*state_dict")


def test_a_whole_model_instead_of_its_tensors(tmp_path):
    torch.save(random_model(), tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "vitreous.model.vit.ViT")


def test_things_that_are_no_tensors_by_name(tmp_path):
    torch.save([torch.zeros(3)], tmp_path / "list.pth")
    refused(tmp_path / "list.pth", "list")
    torch.save({"epoch": 3, "best_loss": 0.5}, tmp_path / "empty.pth")
    refused(tmp_path / "empty.pth", "epoch, best_loss")
    with zipfile.ZipFile(tmp_path / "z.pth", "w") as archive:
        archive.writestr("letter.txt", "hello")
    refused(tmp_path / "z.pth", "letter.txt")


def test_folders(tmp_path):
    refused(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    refused(tmp_path, "notes.txt")
    torch.save(timm_like(), tmp_path / "one.pth")
    assert open_weights(tmp_path).model.config.classes == 5, "one candidate is the one"
    save_file(timm_like(), tmp_path / "two.safetensors")
    refused(tmp_path, "one.pth, two.safetensors")
    (tmp_path / "config.json").write_text('{"model_args": {"num_heads": 4}}')
    assert open_weights(tmp_path / "one.pth").model.config.heads == 4, "the advice can be followed"


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_trainings_other_files_do_not_hide_the_weights(tmp_path, name):
    """A folder of transformers' Trainer."""
    for other in ("training_args.bin", "optimizer.pt", "scheduler.pt"):
        torch.save({"lr": 0.1}, tmp_path / other)
    (tmp_path / "config.json").write_text("{}")
    (save_file if name.endswith("safetensors") else torch.save)(timm_like(), tmp_path / name)
    for place in (tmp_path, tmp_path / name):
        assert open_weights(place).model.config.classes == 5


def test_a_config_json_that_is_broken(tmp_path):
    torch.save(timm_like(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text("{ broken")
    with pytest.raises(UserError, match=r"config.json: "):
        open_weights(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UserError, match=r"config.json: "):
        open_weights(tmp_path)


def test_one_wrong_shape(tmp_path):
    state = timm_like()
    state["blocks.1.attn.qkv.weight"] = torch.zeros(300, 128)
    save_file(state, tmp_path / "w.safetensors")
    refused(tmp_path / "w.safetensors", r"blocks.1.attn.qkv.weight .*\(300, 128\).*\(384, 128\)")


WRONG_AXES = {
    "patch_embed.proj.weight": (128, 192),
    "pos_embed": (17,),
    "blocks.0.mlp.fc1.weight": (),
    "head.weight": (),
    "embedding/kernel": (192, 128),
    "Transformer/posembed_input/pos_embedding": (17,),
    "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel": (128,),
    "head/bias": (),
}


def test_a_wrong_number_of_axes(subtests, tmp_path):
    for name, shape in WRONG_AXES.items():
        with subtests.test(name):
            if "/" in name:
                np.savez(tmp_path / "w.npz", **{**google(), name: np.zeros(shape, np.float32)})
            else:
                torch.save({**timm_like(), name: torch.zeros(shape)}, tmp_path / "w.npz")
            refused(tmp_path / "w.npz", f"{name} .*{re.escape(str(shape))}")
    state = {"vit.embeddings.patch_embeddings.projection.weight": torch.zeros(64, 3, 8, 8)}
    for name in ("embeddings.patch_embeddings.projection.weight", "embeddings.position_embeddings"):
        with subtests.test(f"Hugging Face, {name}"):
            save_file({**state, f"vit.{name}": torch.zeros(3)}, tmp_path / "w.safetensors")
            refused(tmp_path / "w.safetensors", rf"vit.{name} .*\(3,\)")


def test_a_stem_that_is_not_whole_or_not_known_is_refused(tmp_path):
    np.savez(tmp_path / "w.npz", **google(), **{"conv_root/kernel": np.zeros((7, 7, 3, 64), np.float32)})
    refused(tmp_path / "w.npz")
    state = {**timm_like(), "patch_embed.backbone.stem.conv.weight": torch.zeros(64, 3, 7, 7)}
    for content in (state, {"model": state}):
        torch.save(content, tmp_path / "w.npz")
        refused(tmp_path / "w.npz")


@pytest.mark.parametrize("kind", ["compressed npz", "npz", "pth"])
def test_a_damaged_archive_is_refused_or_read(subtests, tmp_path, kind):
    """Sixteen bytes overwritten anywhere; what is raised must be a sentence."""
    path = tmp_path / "w.npz"
    if kind == "pth":
        torch.save(timm_like(depth=1), path)
    else:
        small = {name: array[:2] for name, array in google().items()}
        (np.savez_compressed if "compressed" in kind else np.savez)(path, **small)
    original = path.read_bytes()
    for percent in range(0, 100, 7):
        with subtests.test(f"at {percent} %"), suppress(UserError):
            content = bytearray(original)
            at = percent * (len(content) - 16) // 99
            content[at : at + 16] = b"\xff" * 16
            path.write_bytes(content)
            assert open_weights(path).model.config.depth > 0


def test_the_list_of_an_archive_is_damaged(tmp_path):
    """A version that zipfile does not know, and a name that is no text."""
    path = tmp_path / "w.pth"
    torch.save(timm_like(depth=1), path)
    whole = path.read_bytes()
    at = whole.rindex(b"PK\x01\x02")
    for offset, wrong in ((6, b"\xff\x00"), (8, b"\x00\x08")):  # needs version 25.5; names are UTF-8
        content = bytearray(whole)
        content[at + offset : at + offset + 2] = wrong
        if offset == 8:
            content[at + 46 : at + 48] = b"\xff\xfe"
        path.write_bytes(content)
        refused(path)


def test_numbers_of_other_machines(tmp_path):
    arrays = google()
    np.savez(tmp_path / "big.npz", **{name: array.astype(">f4") for name, array in arrays.items()})
    assert torch.equal(open_weights(tmp_path / "big.npz").model.head.bias, torch.from_numpy(arrays["head/bias"]))
    np.savez(tmp_path / "long.npz", **{**arrays, "cls": arrays["cls"].astype(np.longdouble)})
    refused(tmp_path / "long.npz", "cls .*float128")
