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


def refused(path, says):
    with pytest.raises(UserError, match=says) as caught:
        open_weights(path)
    assert str(path.name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.txt", "a.safetensors", "a.pth", "a.npz", "a.bin", "noending"])
def test_a_file_that_is_not_a_checkpoint(tmp_path, name):
    (tmp_path / name).write_text("Dear reader, this is a letter.\n" * 10)
    refused(tmp_path / name, r"not a checkpoint|not a \.safetensors file")
    (tmp_path / name).write_bytes(b"")
    refused(tmp_path / name, "the file is empty")


def test_a_page_and_a_pointer_in_place_of_the_file(tmp_path):
    (tmp_path / "w.pth").write_text("<!DOCTYPE html><title>404</title>")
    refused(tmp_path / "w.pth", "not a checkpoint")
    (tmp_path / "w.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    refused(tmp_path / "w.safetensors", "a pointer of Git LFS")


def test_nothing_there(tmp_path):
    refused(tmp_path / "none.pth", "there is no such file")
    refused(tmp_path / "none", "there is nothing of this name")


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("kind", ["safetensors", "pth", "old pth", "npz"])
def test_a_truncated_file(tmp_path, kind, kept):
    path = tmp_path / f"w.{kind.split()[-1]}"
    if kind == "safetensors":
        save_file(timm_like(), path)
    elif kind == "npz":
        np.savez(path, **google())
    else:
        torch.save(timm_like(), path, _use_new_zipfile_serialization=kind == "pth")
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    refused(path, "damaged")


def test_a_text_model(tmp_path):
    bert = {
        "bert.embeddings.word_embeddings.weight": torch.zeros(10, 4),
        "bert.encoder.layer.0.attention.self.query.weight": torch.zeros(4, 4),
    }
    save_file(bert, tmp_path / "model.safetensors")
    refused(tmp_path / "model.safetensors", r"not a Vision Transformer .* by its tensors a text model \(its first")


def test_a_convolutional_network(tmp_path):
    torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7), "bn1.weight": torch.zeros(64)}, tmp_path / "resnet50.pth")
    refused(tmp_path / "resnet50.pth", "a convolutional network or a hybrid of another kind")


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


@pytest.mark.parametrize("kind", ["zip", "old", "plain pickle", "inside a good file", "npz"])
def test_a_pickle_with_code_in_it_does_not_run(tmp_path, kind):
    path, trap = tmp_path / "w.pth", tmp_path / "trap"
    bomb = Bomb(trap)
    if kind == "zip":
        torch.save(bomb, path)
    elif kind == "old":
        path.write_bytes(old_style(bomb))
    elif kind == "plain pickle":
        path.write_bytes(pickle.dumps({"model": bomb}))
    elif kind == "inside a good file":
        torch.save({"model": timm_like(), "args": bomb}, path)
    else:
        path = tmp_path / "w.npz"
        np.savez(path, **google(), extra=np.array([bomb], dtype=object))
    refused(path, "holds more than tensors|not plain numbers|no checkpoint of PyTorch")
    assert not trap.exists()
    if kind == "zip":  # the trap is a real one
        torch.load(path, weights_only=False)
        assert trap.exists()


def test_options_of_a_training_are_harmless_and_other_objects_are_not(tmp_path):
    options = argparse.Namespace(lr=0.1, names=["a"], nested={"b": (1, 2.0)})
    torch.save({"model": timm_like(), "args": options}, tmp_path / "good.pth")
    open_weights(tmp_path / "good.pth")
    torch.save({"model": timm_like(), "path": Path("x")}, tmp_path / "odd.pth")
    refused(tmp_path / "odd.pth", r"holds more than tensors \(pathlib.*save the state_dict alone")


def test_a_whole_model_instead_of_its_tensors(tmp_path):
    torch.save(random_model(), tmp_path / "model.pt")
    refused(tmp_path / "model.pt", r"holds more than tensors \(vitreous.model.vit.ViT\)")


def test_things_that_are_no_tensors_by_name(tmp_path):
    torch.save([torch.zeros(3)], tmp_path / "list.pth")
    refused(tmp_path / "list.pth", "holds list, not tensors by name")
    torch.save({"epoch": 3, "best": 0.5}, tmp_path / "empty.pth")
    refused(tmp_path / "empty.pth", r"holds no tensors by name \(it has epoch, best\)")
    with zipfile.ZipFile(tmp_path / "z.pth", "w") as archive:
        archive.writestr("letter.txt", "hello")
    refused(tmp_path / "z.pth", r"a zip archive that is no checkpoint \(it holds letter.txt\)")


def test_folders(tmp_path):
    refused(tmp_path, "no weights in it .it holds nothing.")
    (tmp_path / "notes.txt").write_text("hello")
    refused(tmp_path, "no weights in it .it holds notes.txt.")
    torch.save(timm_like(), tmp_path / "one.pth")
    assert open_weights(tmp_path).model.config.classes == 5, "one candidate is the one"
    save_file(timm_like(), tmp_path / "two.safetensors")
    refused(tmp_path, "holds one.pth, two.safetensors; give the path of the one that is meant")
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
    with pytest.raises(UserError, match=r"config.json: not valid JSON"):
        open_weights(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UserError, match=r"config.json: is not a JSON object"):
        open_weights(tmp_path)


def test_one_wrong_shape(tmp_path):
    state = timm_like()
    state["blocks.1.attn.qkv.weight"] = torch.zeros(300, 128)
    save_file(state, tmp_path / "w.safetensors")
    refused(
        tmp_path / "w.safetensors", r"blocks.1.attn.qkv.weight has shape \(300, 128\), and the model needs \(384, 12"
    )


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


@pytest.mark.parametrize("name", WRONG_AXES)
def test_a_wrong_number_of_axes(tmp_path, name):
    if "/" in name:
        np.savez(tmp_path / "w.npz", **{**google(), name: np.zeros(WRONG_AXES[name], np.float32)})
    else:
        torch.save({**timm_like(), name: torch.zeros(WRONG_AXES[name])}, tmp_path / "w.npz")
    refused(tmp_path / "w.npz", re.escape(f"{name} has shape {WRONG_AXES[name]}"))


@pytest.mark.parametrize("name", ["embeddings.patch_embeddings.projection.weight", "embeddings.position_embeddings"])
def test_a_wrong_number_of_axes_in_a_hugging_face_file(tmp_path, name):
    state = {"vit.embeddings.patch_embeddings.projection.weight": torch.zeros(64, 3, 8, 8)}
    save_file({**state, f"vit.{name}": torch.zeros(3)}, tmp_path / "w.safetensors")
    refused(tmp_path / "w.safetensors", rf"vit.{name} has shape \(3,\)")


@pytest.mark.parametrize("kind", ["google", "timm", "training file"])
def test_a_stem_that_is_not_whole_or_not_known_is_said(tmp_path, kind):
    path = tmp_path / "w.npz"
    if kind == "google":
        np.savez(path, **google(), **{"conv_root/kernel": np.zeros((7, 7, 3, 64), np.float32)})
        refused(path, "the file is not of this model")
        return
    state = {**timm_like(), "patch_embed.backbone.stem.conv.weight": torch.zeros(64, 3, 7, 7)}
    torch.save(state if kind == "timm" else {"model": state}, path)
    refused(path, "a convolutional network or a hybrid of another kind")


@pytest.mark.parametrize("place", range(0, 100, 7))
@pytest.mark.parametrize("kind", ["compressed npz", "npz", "pth"])
def test_a_damaged_archive_is_refused_or_read(tmp_path, kind, place):
    """Sixteen bytes overwritten anywhere; what is raised must be a sentence."""
    path = tmp_path / "w.npz"
    if kind == "pth":
        torch.save(timm_like(depth=1), path)
    else:
        small = {name: array[:2] for name, array in google().items()}
        (np.savez_compressed if "compressed" in kind else np.savez)(path, **small)
    content = bytearray(path.read_bytes())
    at = place * (len(content) - 16) // 99
    content[at : at + 16] = b"\xff" * 16
    path.write_bytes(content)
    with suppress(UserError):
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
        refused(path, "damaged")


def test_numbers_of_other_machines(tmp_path):
    arrays = google()
    np.savez(tmp_path / "big.npz", **{name: array.astype(">f4") for name, array in arrays.items()})
    assert torch.equal(open_weights(tmp_path / "big.npz").model.head.bias, torch.from_numpy(arrays["head/bias"]))
    np.savez(tmp_path / "long.npz", **{**arrays, "cls": arrays["cls"].astype(np.longdouble)})
    refused(tmp_path / "long.npz", "cls holds float128, not numbers that PyTorch knows")
