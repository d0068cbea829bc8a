"""How timm reads a folder of its hub: its registry's arguments, those of config.json over them, and what it builds.

Written from timm's `vision_transformer.py`, `deit.py` and `_builder.py`, not from the package under test.
"""

import re

SIZES = {  # embed_dim, depth, num_heads
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "huge": (1280, 32, 16),
    "giant": (1408, 40, 16),
}
DEFAULTS = {
    "img_size": 224,
    "in_chans": 3,
    "global_pool": "token",
    "mlp_ratio": 4.0,
    "qk_norm": False,
    "init_values": None,
    "class_token": True,
    "pos_embed": "learn",
    "no_embed_class": False,
    "reg_tokens": 0,
    "fc_norm": None,
    "act_layer": "gelu",
    "dynamic_img_size": False,
}


def arguments(config):
    """What the constructor gets."""
    name = re.fullmatch(r"(vit|deit)_(\w+?)(_distilled)?_patch(\d+)_(\d+)", config["architecture"])
    width, depth, heads = SIZES[name[2]]
    said = {"embed_dim": width, "depth": depth, "num_heads": heads, "patch_size": int(name[4])}
    said |= {"mlp_ratio": 48 / 11} if name[2] == "giant" else {}
    pretrained = config["pretrained_cfg"]
    if pretrained["fixed_input_size"]:  # only then the size is that of the pictures
        said["img_size"] = tuple(pretrained["input_size"][-2:])
    said |= {"num_classes": config["num_classes"], "in_chans": pretrained["input_size"][0]}
    return {**DEFAULTS, **said, **config.get("model_args", {}), "distilled": name[3] is not None}


def shapes(a):
    """The tensors that the constructor makes."""
    width, patch, hidden = a["embed_dim"], a["patch_size"], int(a["embed_dim"] * a["mlp_ratio"])
    height, across = a["img_size"] if isinstance(a["img_size"], list | tuple) else (a["img_size"],) * 2
    prefix = a["class_token"] + a["distilled"] + a["reg_tokens"]
    made = {"patch_embed.proj.weight": (width, a["in_chans"], patch, patch), "patch_embed.proj.bias": (width,)}
    made |= {"cls_token": (1, 1, width)} if a["class_token"] else {}
    made |= {"dist_token": (1, 1, width)} if a["distilled"] else {}
    made |= {"reg_token": (1, a["reg_tokens"], width)} if a["reg_tokens"] else {}
    if a["pos_embed"] != "none":
        cells = (height // patch) * (across // patch)
        made["pos_embed"] = (1, cells + (0 if a["no_embed_class"] else prefix), width)

    def layer(name, outputs, inputs=None):
        return {f"{name}.weight": (outputs,) if inputs is None else (outputs, inputs), f"{name}.bias": (outputs,)}

    for i in range(a["depth"]):
        b = f"blocks.{i}."
        made |= layer(b + "norm1", width) | layer(b + "attn.qkv", 3 * width, width)
        made |= layer(b + "attn.proj", width, width) | layer(b + "norm2", width)
        made |= layer(b + "mlp.fc1", hidden, width) | layer(b + "mlp.fc2", width, hidden)
        if a["init_values"]:
            made |= {f"{b}ls{j}.gamma": (width,) for j in (1, 2)}
        if a["qk_norm"]:
            made |= layer(b + "attn.q_norm", width // a["num_heads"]) | layer(
                b + "attn.k_norm", width // a["num_heads"]
            )
    pooled = a["global_pool"] == "avg" if a["fc_norm"] is None else a["fc_norm"]
    made |= layer("fc_norm" if pooled else "norm", width)
    for head in ("head", "head_dist")[: 1 + a["distilled"]] if a["num_classes"] else ():
        made |= layer(head, a["num_classes"], width)
    return made
