"""What the name of a timm architecture says that its tensors do not: the number of heads, and what cannot be opened.

Tests hold it against timm itself, every architecture of its `vision_transformer`, its hybrids and `deit`.
"""

from __future__ import annotations

import re

OPENED = (
    *("vit_*", "deit_*", "deit3_*", "flexivit_*", "eva_large_*"),
    *("resnetv2_*_bit", "tf_efficientnet_*", "efficientnet_b*"),
)
"""The types of timm's that can be opened, apart from the exceptions below."""

_HEADS = {
    "tiny": 3,
    "xsmall": 4,
    "wee": 4,
    "little": 5,
    "small": 6,
    "medium": 8,
    "mediumd": 8,
    "betwixt": 10,
    "base": 12,
    "so150m": 14,
    "so400m": 16,
    "large": 16,
    "huge": 16,
    "giant": 16,
    "gigantic": 16,
}
"""By the word for the size."""
_OTHER_HEADS = {
    r"vit_base_patch\d+_plus_": 14,
    r"vit_base_patch16_gap_224": 16,
    r"vit_giant_patch14_(reg\d_)?(dinov2|tipsv2)": 24,
    r"test_vit2?$": 2,
}
"""Where the word does not tell."""
_SIZE = re.compile(r"(?:vit|deit3?|flexivit|eva)_(?P<size>[a-z]+[0-9a-z]*)(?:_|$)")

_REFUSED = {
    r"quickgelu": "has QuickGELU in its MLPs, which is not known here",
    r"_clip_": "is CLIP's, with a LayerNorm before the blocks, and cannot be opened",
    r"vit_(giantopt|so400m_patch16|base_patch32)_(\w+_)?siglip": "has the tanh form of GELU, which is not known here",
    r"vit_large_patch16_siglip_(gap_)?512": "has the tanh form of GELU, which is not known here",
    r"_rpn_": "has its LayerNorms after the branches and before the sums, and cannot be opened",
    r"_(rope|relpos)|rope|relpos": "has positions that are not known here, and cannot be opened",
    r"dinov3": "is DINOv3, with rotary positions, and cannot be opened",
    r"^vit_\w+_resnet(26|50)d|_mci_": "is a hybrid with a stem that is not known here, and cannot be opened",
    r"^resnetv2_(?!\d+x\d+_bit)": "is a ResNet of another kind than BiT, and cannot be opened",
    r"efficientnetv2_|efficientnet_(?!(b[0-7]|l2)(\.|$))": "is an EfficientNet of another kind than B0 to B7 and L2, "
    "and cannot be opened",
    r"_(18x2|xp|intern300m|dlittle|dwee|dpwee|pwee)_|^test_vit4|^aimv2_": "has blocks of another kind, and cannot be "
    "opened",
    r"so150m2": "has no biases of q, k and v, and cannot be opened",
    r"^test_vit3": "pools over registers too, and cannot be opened",
    r"^(beit|beitv2|beit3|eva02|eva_giant|samvit|naflexvit|vitamin|cait|convit|volo|xcit|tnt)_": (
        f"cannot be opened; those that can are {', '.join(OPENED)}"
    ),
}
"""Types whose tensors look much like a plain ViT's, and which are none."""


def heads_of(name: str) -> int | None:
    """How many heads the architecture of this name has; None if it is not known here."""
    heads = next((heads for pattern, heads in _OTHER_HEADS.items() if re.match(pattern, name)), None)
    if heads is None and (size := _SIZE.match(name)):
        heads = _HEADS.get(size["size"])
    return heads


def why_not(name: str) -> str | None:
    """Why a model of this name cannot be opened; None if it can, or if the name is not known here."""
    return next((reason for pattern, reason in _REFUSED.items() if re.search(pattern, name)), None)
