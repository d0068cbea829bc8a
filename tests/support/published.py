"""Tensors in exactly the names and shapes that the public repositories' code gives them, with random values.

Written from the repositories' model definitions, not from the package under test.
"""

import argparse

import numpy as np
import torch

D, DEPTH, HEADS, MLP, P, SIDE, K = 128, 2, 2, 256, 8, 32, 5
CELLS = (SIDE // P) ** 2
SHAPE = {"width": D, "depth": DEPTH, "heads": HEADS, "mlp_width": MLP, "patch": P, "image_size": (SIDE, SIDE)}
"""Of all the models here, as our configuration calls it."""


_DRAW = torch.Generator().manual_seed(0)


def numbers(*shape):
    return torch.randn(shape, generator=_DRAW) * 0.1


def timm_like(*, cls_positions=1, classes=K, depth=DEPTH):
    """vision_transformer.py of DeiT, DINO and MAE: the names that all of them share."""
    state = {
        "cls_token": numbers(1, 1, D),
        "pos_embed": numbers(1, CELLS + cls_positions, D),
        "patch_embed.proj.weight": numbers(D, 3, P, P),
        "patch_embed.proj.bias": numbers(D),
    }
    for i in range(depth):
        b = f"blocks.{i}."
        state |= {
            b + "norm1.weight": numbers(D),
            b + "norm1.bias": numbers(D),
            b + "attn.qkv.weight": numbers(3 * D, D),
            b + "attn.qkv.bias": numbers(3 * D),
            b + "attn.proj.weight": numbers(D, D),
            b + "attn.proj.bias": numbers(D),
            b + "norm2.weight": numbers(D),
            b + "norm2.bias": numbers(D),
            b + "mlp.fc1.weight": numbers(MLP, D),
            b + "mlp.fc1.bias": numbers(MLP),
            b + "mlp.fc2.weight": numbers(D, MLP),
            b + "mlp.fc2.bias": numbers(D),
        }
    state |= {"norm.weight": numbers(D), "norm.bias": numbers(D)}
    if classes:
        state |= {"head.weight": numbers(classes, D), "head.bias": numbers(classes)}
    return state


def dino_head():
    """DINOHead with three layers and a weight-normalised last one."""
    return {
        "head.mlp.0.weight": numbers(64, D),
        "head.mlp.0.bias": numbers(64),
        "head.mlp.2.weight": numbers(64, 64),
        "head.mlp.2.bias": numbers(64),
        "head.mlp.4.weight": numbers(32, 64),
        "head.mlp.4.bias": numbers(32),
        "head.last_layer.weight_g": numbers(100, 1),
        "head.last_layer.weight_v": numbers(100, 32),
    }


def dino_training(teacher, student):
    """main_dino.py saves the student as it was distributed, the teacher, and the state of everything."""
    return {
        "student": {f"module.backbone.{name}": value for name, value in student.items()}
        | {f"module.{name}": value for name, value in dino_head().items()},
        "teacher": {f"backbone.{name}": value for name, value in teacher.items()} | dino_head(),
        "optimizer": {"state": {0: {"step": 7, "exp_avg": numbers(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "epoch": 100,
        "args": argparse.Namespace(arch="vit_small", patch_size=16),
        "dino_loss": {"center": numbers(1, 100)},
        "fp16_scaler": {"scale": 65536.0},
    }


def deit_training(model, average):
    """main.py of DeiT, in its order."""
    return {
        "model": model,
        "optimizer": {"state": {0: {"step": 7, "exp_avg": numbers(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "lr_scheduler": {"base_values": [0.1]},
        "epoch": 3,
        "model_ema": average,
        "scaler": {"scale": 65536.0},
        "args": argparse.Namespace(lr=1e-3, model="deit_small"),
    }


def dinov2_training(teacher, student):
    """ssl_meta_arch.py: both in one module, each with its heads, and the centres of the losses."""
    model = {}
    for word, state in (("student", student), ("teacher", teacher)):
        model |= {f"{word}.backbone.{name}": value for name, value in state.items()}
        model |= {f"{word}.dino_head.mlp.0.weight": numbers(3, D), f"{word}.ibot_head.mlp.0.weight": numbers(3, D)}
    model |= {"dino_loss.center": numbers(1, 3), "ibot_patch_loss.center": numbers(1, 1, 3)}
    return {"model": model, "optimizer": {"state": {}}, "iteration": 5}


def mae_decoder():
    """models_mae.py: what there is beside the encoder."""
    state = {
        "mask_token": numbers(1, 1, 64),
        "decoder_pos_embed": numbers(1, CELLS + 1, 64),
        "decoder_embed.weight": numbers(64, D),
        "decoder_embed.bias": numbers(64),
        "decoder_norm.weight": numbers(64),
        "decoder_norm.bias": numbers(64),
        "decoder_pred.weight": numbers(P * P * 3, 64),
        "decoder_pred.bias": numbers(P * P * 3),
    }
    for name, shape in {"norm1": (64,), "attn.qkv": (192, 64), "attn.proj": (64, 64), "norm2": (64,)}.items():
        state |= {
            f"decoder_blocks.0.{name}.weight": numbers(*shape),
            f"decoder_blocks.0.{name}.bias": numbers(shape[0]),
        }
    state |= {"decoder_blocks.0.mlp.fc1.weight": numbers(256, 64), "decoder_blocks.0.mlp.fc1.bias": numbers(256)}
    state |= {"decoder_blocks.0.mlp.fc2.weight": numbers(64, 256), "decoder_blocks.0.mlp.fc2.bias": numbers(64)}
    return state


def dinov2(*, registers=0, swiglu=False, chunks=False):
    """dinov2/models/vision_transformer.py."""
    state = timm_like(classes=0)
    state["mask_token"] = numbers(1, D)
    if registers:
        state["register_tokens"] = numbers(1, registers, D)
    for i in range(DEPTH):
        b = f"blocks.{i}."
        state |= {b + "ls1.gamma": numbers(D), b + "ls2.gamma": numbers(D)}
        if swiglu:
            for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"):
                del state[f"{b}mlp.{name}"]
            hidden = (int(MLP * 2 / 3) + 7) // 8 * 8
            state |= {b + "mlp.w12.weight": numbers(2 * hidden, D), b + "mlp.w12.bias": numbers(2 * hidden)}
            state |= {b + "mlp.w3.weight": numbers(D, hidden), b + "mlp.w3.bias": numbers(D)}
    if chunks:  # one block a chunk
        state = {
            name.replace("blocks.0.", "blocks.0.0.").replace("blocks.1.", "blocks.1.1."): value
            for name, value in state.items()
        }
    return state


def google(*, representation=False, classes=K):
    """models_vit.py of vision_transformer, as flax flattens its parameters."""
    d = D // HEADS

    def dense(name, inputs, outputs):
        return {f"{name}/kernel": numbers(inputs, outputs).numpy(), f"{name}/bias": numbers(outputs).numpy()}

    def norm(name):
        return {f"{name}/scale": numbers(D).numpy(), f"{name}/bias": numbers(D).numpy()}

    state = {
        "cls": numbers(1, 1, D).numpy(),
        "embedding/kernel": numbers(P, P, 3, D).numpy(),
        "embedding/bias": numbers(D).numpy(),
        "Transformer/posembed_input/pos_embedding": numbers(1, CELLS + 1, D).numpy(),
        **norm("Transformer/encoder_norm"),
        **dense("head", D, classes),
    }
    if representation:
        state |= dense("pre_logits", D, D)
    for i in range(DEPTH):
        b = f"Transformer/encoderblock_{i}/"
        state |= norm(b + "LayerNorm_0") | norm(b + "LayerNorm_2")
        state |= dense(b + "MlpBlock_3/Dense_0", D, MLP) | dense(b + "MlpBlock_3/Dense_1", MLP, D)
        attention = b + "MultiHeadDotProductAttention_1/"
        for name in ("query", "key", "value"):
            state[f"{attention}{name}/kernel"] = numbers(D, HEADS, d).numpy()
            state[f"{attention}{name}/bias"] = numbers(HEADS, d).numpy()
        state[f"{attention}out/kernel"] = numbers(HEADS, d, D).numpy()
        state[f"{attention}out/bias"] = numbers(D).numpy()
    return state


def random_images(side=SIDE, count=2):
    return np.random.default_rng(0).normal(size=(count, 3, side, side)).astype(np.float32)
