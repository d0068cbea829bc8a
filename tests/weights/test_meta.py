"""The files of DeiT, DINO, DINOv2 and MAE as their repositories publish them, against the paper in NumPy."""

import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from support.numpy_vit import NumpyViT
from support.published import (
    DEPTH,
    MLP,
    SHAPE,
    D,
    K,
    deit_training,
    dino_training,
    dinov2,
    dinov2_training,
    mae_decoder,
    numbers,
    random_images,
    timm_like,
)
from vitreous import UserError, ViTConfig
from vitreous.weights.source import open_weights

BASE = {**SHAPE, "classes": K}


def check(path, config, state, family, crop=0.875):
    """The file opened is this model: the same scores as the equations in NumPy over `state`, in our names."""
    bundle = open_weights(path)
    images = random_images()
    with torch.inference_mode():
        found = bundle.model(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(found, NumpyViT(config, state)(images), atol=1e-5)
    assert f": {family} ViT(128 wide, 2 deep)/8, 32" in bundle.notes[0]
    assert bundle.preprocess.mean == (0.485, 0.456, 0.406)
    assert bundle.preprocess.crop == crop
    assert "preprocess='mean" in bundle.notes[-1]
    return bundle


def test_deit(tmp_path):
    state = timm_like()
    torch.save({"model": state}, tmp_path / "deit.pth")
    check(tmp_path / "deit.pth", ViTConfig(**BASE), state, "DeiT")


def test_deit_with_the_distillation_token(tmp_path):
    state = timm_like(cls_positions=2)
    state |= {"dist_token": numbers(1, 1, D), "head_dist.weight": numbers(K, D), "head_dist.bias": numbers(K)}
    torch.save({"model": state}, tmp_path / "deit.pth")
    check(tmp_path / "deit.pth", ViTConfig(**BASE, distilled=True), state, "DeiT")


def test_deit_iii(tmp_path):
    """models_v2.py: a scale of each branch under another name, and no position of the class token."""
    state = timm_like(cls_positions=0)
    scales = {f"blocks.{i}.ls{j}.gamma": numbers(D) for i in range(DEPTH) for j in (1, 2)}
    theirs = {re.sub(r"ls(\d).gamma", r"gamma_\1", name): value for name, value in scales.items()}
    torch.save({"model": {**state, **theirs}}, tmp_path / "deit3.pth")
    config = ViTConfig(**BASE, layer_scale=1e-5, position_scope="patches")
    check(tmp_path / "deit3.pth", config, {**state, **scales}, "DeiT III", crop=1.0)


def test_a_training_file_prefers_averaged_weights_and_says_so(tmp_path):
    state, raw = timm_like(), timm_like()
    torch.save(deit_training(raw, state), tmp_path / "checkpoint.pth")
    bundle = check(tmp_path / "checkpoint.pth", ViTConfig(**BASE), state, "DeiT")
    assert "'model_ema' (vitreous import --entry model " in bundle.notes[1]
    left = f"model ({len(raw)} tensors), optimizer (1 tensor), lr_scheduler, epoch, scaler, args"
    assert bundle.notes[1].endswith(left)


def test_dino_backbone(tmp_path):
    state = timm_like(classes=0)
    torch.save(state, tmp_path / "dino.pth")
    config = ViTConfig(**{**BASE, "classes": 0})
    bundle = check(tmp_path / "dino.pth", config, state, "DINO")
    assert bundle.model.config.position_resampling == "bicubic-plain"


def test_dino_training_file(tmp_path):
    teacher, student = timm_like(classes=0), timm_like(classes=0)
    torch.save(dino_training(teacher, student), tmp_path / "full.pth")
    bundle = check(tmp_path / "full.pth", ViTConfig(**{**BASE, "classes": 0}), teacher, "DINO")
    said = bundle.notes[1]
    assert "'teacher' (vitreous import --entry student " in said
    assert f"student ({len(student) + 8} tensors), optimizer (1 tensor), epoch, args, dino_loss (1 tensor)" in said
    assert "(8 tensors)" in said


@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("swiglu", [False, True])
def test_dinov2(tmp_path, registers, swiglu):
    state = dinov2(registers=registers, swiglu=swiglu)
    torch.save(state, tmp_path / "dinov2.pth")
    renamed = {"register_tokens": "reg_token", "w12": "fc1", "w3": "fc2"}
    ours = {}
    for name, value in state.items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        ours[name] = value
    hidden = (int(MLP * 2 / 3) + 7) // 8 * 8 if swiglu else MLP
    config = ViTConfig(
        **{**BASE, "classes": 0, "mlp_width": hidden},
        mlp="swiglu" if swiglu else "gelu",
        registers=registers,
        position_scope="class",
        layer_scale=1.0,
    )
    bundle = check(tmp_path / "dinov2.pth", config, ours, "DINOv2")
    assert bundle.notes[1].endswith("(1 tensor)")


def test_dinov2_teacher_of_a_training_in_chunks(tmp_path):
    state = dinov2(registers=4, chunks=True)
    heads = {"dino_head.mlp.0.weight": numbers(3, D), "ibot_head.last_layer.weight_v": numbers(3, 3)}
    teacher = {f"backbone.{name}": value for name, value in state.items()} | heads
    torch.save({"teacher": teacher}, tmp_path / "teacher_checkpoint.pth")
    plain = dict(state)
    for name in list(plain):
        plain[re.sub(r"blocks\.\d\.(\d)", r"blocks.\1", name).replace("register_tokens", "reg_token")] = plain[name]
    config = ViTConfig(**{**BASE, "classes": 0}, registers=4, position_scope="class", layer_scale=1.0)
    bundle = check(tmp_path / "teacher_checkpoint.pth", config, plain, "DINOv2")
    assert re.search(r"\(1 tensor\).*\(2 tensors\)", bundle.notes[1])
    torch.save(dinov2_training(state, dinov2(registers=4)), tmp_path / "model.pth")
    said = check(tmp_path / "model.pth", config, plain, "DINOv2").notes[1]
    assert "'teacher' (vitreous import --entry student " in said
    student = len(dinov2(registers=4)) + 2
    assert f"student ({student} tensors), dino_loss (1 tensor), ibot_patch_loss (1 tensor), optimizer, iter" in said


def test_dinov2_at_518_is_shown_images_of_224(tmp_path):
    state = dinov2()
    state["pos_embed"] = numbers(1, 37 * 37 + 1, D)
    state["patch_embed.proj.weight"] = numbers(D, 3, 14, 14)
    torch.save(state, tmp_path / "dinov2.pth")
    bundle = open_weights(tmp_path / "dinov2.pth")
    assert (bundle.model.config.image_size, bundle.preprocess.size) == ((518, 518), (224, 224))
    assert bundle.preprocess.resized == (256, 256)


@pytest.mark.parametrize("decoder", [False, True])
def test_mae(tmp_path, decoder):
    state = timm_like(classes=0)
    extra = mae_decoder() if decoder else {}
    torch.save({"model": {**state, **extra}}, tmp_path / "mae.pth")
    bundle = check(tmp_path / "mae.pth", ViTConfig(**{**BASE, "classes": 0}), state, "MAE")
    if decoder:
        assert re.search(rf"\(1 tensor\).*\({len(extra) - 1} tensors\)", bundle.notes[1])


def test_mae_fine_tuned(tmp_path):
    """The mean of the patches with a norm of its own instead of the last one."""
    state = timm_like()
    state = {name.replace("norm.", "fc_norm.") if name.startswith("norm.") else name: t for name, t in state.items()}
    torch.save({"model": state}, tmp_path / "mae.pth")
    check(tmp_path / "mae.pth", ViTConfig(**BASE, pool="mean", norm_after_pool=True), state, "MAE")


def test_mae_sees_the_whole_short_side_above_224(tmp_path):
    """util/datasets.py: 224 of 256 up to 224 pixels, else all."""
    state = timm_like()
    state = {name.replace("norm.", "fc_norm.") if name.startswith("norm.") else name: t for name, t in state.items()}
    state["pos_embed"] = numbers(1, 32 * 32 + 1, D)
    torch.save({"model": state}, tmp_path / "mae.pth")
    found = open_weights(tmp_path / "mae.pth").preprocess
    assert (found.size, found.crop) == ((256, 256), 1.0)


def test_the_first_part_with_tensors_is_the_model(tmp_path):
    state = timm_like()
    file = {"model_ema": {}, "model": {"name": "vit"}, "state_dict": state}
    torch.save(file, tmp_path / "w.pth")
    assert torch.equal(open_weights(tmp_path / "w.pth").model.head.weight, state["head.weight"])


def test_names_of_a_distributed_or_compiled_model(tmp_path):
    state = timm_like()
    for number, prefix in enumerate(("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.")):
        path = tmp_path / f"{number}.pth"
        torch.save({"state_dict": {prefix + name: value for name, value in state.items()}}, path)
        found = open_weights(path).model.state_dict()
        assert all(torch.equal(found[name], value) for name, value in state.items())


def test_an_old_file_of_torch(tmp_path):
    state = timm_like()
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert torch.equal(open_weights(tmp_path / "old.pth").model.head.weight, state["head.weight"])


def test_safetensors_with_dinov2s_own_names(tmp_path):
    state = dinov2(registers=4)
    save_file(state, tmp_path / "d.safetensors")
    assert "DINOv2" in open_weights(tmp_path / "d.safetensors").notes[0]


def test_one_wrong_shape_is_named(tmp_path):
    state = timm_like()
    state["blocks.1.mlp.fc2.bias"] = numbers(7)
    torch.save({"model": state}, tmp_path / "deit.pth")
    with pytest.raises(UserError, match=r"deit.pth: blocks.1.mlp.fc2.bias .*\(7,\).*\(128,"):
        open_weights(tmp_path / "deit.pth")
