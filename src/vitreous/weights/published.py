"""Published weights that have a short name here: where they are on the Hugging Face hub, and what is known of them."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

HUB = "hf:"  # hf:organisation/model, or hf:organisation/model@revision
TIMM_HUB = "hf-hub:"  # the same, as timm writes it


@dataclass(frozen=True)
class Weights:
    """One repository, and what its authors say of it."""

    timm_name: str
    model: str
    parameters: int
    licence: str
    data: str  # what it was trained on; IN: ImageNet
    accuracy: float  # per cent of ImageNet-1k's validation images
    measured: Literal["top-1", "linear probe", "fine-tuned", "zero-shot", "linear, ReaL"] = "top-1"

    @property
    def repository(self) -> str:
        return f"timm/{self.timm_name}"

    @property
    def megabytes(self) -> float:
        """The size of the download, float32."""
        return 4 * self.parameters / 1e6


_21K, _1K, _JFT = "IN-21k, IN-1k", "IN-1k", "JFT-300M, IN-1k"
_LVD, _LVD3, _WIT, _WEBLI = "LVD-142M", "LVD-1689M", "WIT-400M", "WebLI"
_APACHE, _NC, _MIT, _DINOV3 = "apache-2.0", "cc-by-nc-4.0", "mit", "dinov3-license"

WEIGHTS: dict[str, Weights] = {
    # Steiner et al. 2021, "How to train your ViT?"; accuracies: timm's results-imagenet.csv
    "ti16": Weights("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "ViT-Ti/16", 5_717_416, _APACHE, _21K, 75.5),
    "s32": Weights("vit_small_patch32_224.augreg_in21k_ft_in1k", "ViT-S/32", 22_878_952, _APACHE, _21K, 76.0),
    "s16": Weights("vit_small_patch16_224.augreg_in21k_ft_in1k", "ViT-S/16", 22_050_664, _APACHE, _21K, 81.4),
    "s16-384": Weights("vit_small_patch16_384.augreg_in21k_ft_in1k", "ViT-S/16@384", 22_196_584, _APACHE, _21K, 83.8),
    "b32": Weights("vit_base_patch32_224.augreg_in21k_ft_in1k", "ViT-B/32", 88_224_232, _APACHE, _21K, 80.7),
    "b16": Weights("vit_base_patch16_224.augreg2_in21k_ft_in1k", "ViT-B/16", 86_567_656, _APACHE, _21K, 85.1),
    "b16-384": Weights("vit_base_patch16_384.augreg_in21k_ft_in1k", "ViT-B/16@384", 86_859_496, _APACHE, _21K, 86.0),
    "l16": Weights("vit_large_patch16_224.augreg_in21k_ft_in1k", "ViT-L/16", 304_326_632, _APACHE, _21K, 85.8),
    "l16-384": Weights("vit_large_patch16_384.augreg_in21k_ft_in1k", "ViT-L/16@384", 304_715_752, _APACHE, _21K, 87.1),
    "r26-s32": Weights("vit_small_r26_s32_224.augreg_in21k_ft_in1k", "R26+S/32", 36_431_912, _APACHE, _21K, 81.9),
    "r50-l32": Weights("vit_large_r50_s32_224.augreg_in21k_ft_in1k", "R50+L/32", 328_994_856, _APACHE, _21K, 84.4),
    # Dosovitskiy et al. 2020, the paper's own
    "b16-paper": Weights("vit_base_patch16_224.orig_in21k_ft_in1k", "ViT-B/16", 86_567_656, _APACHE, _21K, 81.8),
    # Touvron et al. 2021, 2022
    "deit-s16": Weights("deit_small_patch16_224.fb_in1k", "DeiT-S/16", 22_050_664, _APACHE, _1K, 79.8),
    "deit-b16": Weights("deit_base_distilled_patch16_224.fb_in1k", "DeiT-B/16", 87_338_192, _APACHE, _1K, 83.4),
    "deit3-s16": Weights("deit3_small_patch16_224.fb_in22k_ft_in1k", "DeiT III S/16", 22_059_496, _APACHE, _21K, 83.1),
    "deit3-b16": Weights("deit3_base_patch16_224.fb_in22k_ft_in1k", "DeiT III B/16", 86_585_320, _APACHE, _21K, 85.7),
    # Peng et al. 2022, Fang et al. 2023
    "beitv2-b16": Weights("beitv2_base_patch16_224.in1k_ft_in22k_in1k", "BEiTv2 B/16", 86_530_984, _APACHE, _21K, 86.5),
    "eva02-s14": Weights("eva02_small_patch14_336.mim_in22k_ft_in1k", "EVA-02 S/14@336", 22_129_000, _MIT, _21K, 85.7),
    # without labels; accuracies: the papers'
    "dino-s16": Weights("vit_small_patch16_224.dino", "DINO S/16", 21_665_664, _APACHE, _1K, 77.0, "linear probe"),
    "dino-s8": Weights("vit_small_patch8_224.dino", "DINO S/8", 21_670_272, _APACHE, _1K, 79.7, "linear probe"),
    "dino-b16": Weights("vit_base_patch16_224.dino", "DINO B/16", 85_798_656, _APACHE, _1K, 78.2, "linear probe"),
    "mae-b16": Weights("vit_base_patch16_224.mae", "MAE B/16", 85_798_656, _NC, _1K, 83.6, "fine-tuned"),
    "mae-l16": Weights("vit_large_patch16_224.mae", "MAE L/16", 303_301_632, _NC, _1K, 85.9, "fine-tuned"),
    "dinov2-s14": Weights(
        "vit_small_patch14_dinov2.lvd142m", "DINOv2 S/14", 22_056_192, _APACHE, _LVD, 81.1, "linear probe"
    ),
    "dinov2-b14": Weights(
        "vit_base_patch14_dinov2.lvd142m", "DINOv2 B/14", 86_579_712, _APACHE, _LVD, 84.5, "linear probe"
    ),
    "dinov2-l14": Weights(
        "vit_large_patch14_dinov2.lvd142m", "DINOv2 L/14", 304_367_616, _APACHE, _LVD, 86.3, "linear probe"
    ),
    "dinov2-g14": Weights(
        "vit_giant_patch14_dinov2.lvd142m", "DINOv2 g/14", 1_136_479_232, _APACHE, _LVD, 86.5, "linear probe"
    ),
    "dinov2-s14-reg": Weights(
        "vit_small_patch14_reg4_dinov2.lvd142m",
        "DINOv2 S/14, registers",
        22_057_344,
        _APACHE,
        _LVD,
        80.9,
        "linear probe",
    ),
    "dinov2-b14-reg": Weights(
        "vit_base_patch14_reg4_dinov2.lvd142m",
        "DINOv2 B/14, registers",
        86_582_016,
        _APACHE,
        _LVD,
        84.6,
        "linear probe",
    ),
    "dinov2-l14-reg": Weights(
        "vit_large_patch14_reg4_dinov2.lvd142m",
        "DINOv2 L/14, registers",
        304_370_688,
        _APACHE,
        _LVD,
        86.7,
        "linear probe",
    ),
    "dinov3-s16": Weights(
        "vit_small_patch16_dinov3.lvd1689m", "DINOv3 S/16", 21_586_944, _DINOV3, _LVD3, 87.0, "linear, ReaL"
    ),
    "dinov3-s16plus": Weights(
        "vit_small_plus_patch16_dinov3.lvd1689m", "DINOv3 S+/16", 28_683_264, _DINOV3, _LVD3, 88.0, "linear, ReaL"
    ),
    "dinov3-b16": Weights(
        "vit_base_patch16_dinov3.lvd1689m", "DINOv3 B/16", 85_641_216, _DINOV3, _LVD3, 89.3, "linear, ReaL"
    ),
    "dinov3-l16": Weights(
        "vit_large_patch16_dinov3.lvd1689m", "DINOv3 L/16", 303_079_424, _DINOV3, _LVD3, 90.2, "linear, ReaL"
    ),
    "dinov3-h16plus": Weights(
        "vit_huge_plus_patch16_dinov3.lvd1689m", "DINOv3 H+/16", 840_509_440, _DINOV3, _LVD3, 90.3, "linear, ReaL"
    ),
    # from images and texts; accuracies: the papers'
    "clip-b32": Weights("vit_base_patch32_clip_224.openai", "CLIP B/32", 87_849_728, _APACHE, _WIT, 63.2, "zero-shot"),
    "clip-b16": Weights("vit_base_patch16_clip_224.openai", "CLIP B/16", 86_193_152, _APACHE, _WIT, 68.6, "zero-shot"),
    "clip-l14": Weights(
        "vit_large_patch14_clip_224.openai", "CLIP L/14", 303_966_976, _APACHE, _WIT, 75.3, "zero-shot"
    ),
    "siglip2-b16": Weights(
        "vit_base_patch16_siglip_224.v2_webli", "SigLIP2 B/16", 92_884_224, _APACHE, _WEBLI, 78.2, "zero-shot"
    ),
    # the systems that the paper compares with: Kolesnikov et al. 2020, Xie et al. 2020
    "bit-r50x1": Weights("resnetv2_50x1_bit.goog_in21k_ft_in1k", "BiT-M R50x1", 25_549_352, _APACHE, _21K, 80.3),
    "bit-r101x1": Weights("resnetv2_101x1_bit.goog_in21k_ft_in1k", "BiT-M R101x1", 44_541_480, _APACHE, _21K, 82.3),
    "bit-r152x4": Weights("resnetv2_152x4_bit.goog_in21k_ft_in1k", "BiT-M R152x4", 936_533_224, _APACHE, _21K, 84.9),
    "noisy-student-b0": Weights("tf_efficientnet_b0.ns_jft_in1k", "EfficientNet-B0", 5_288_548, _APACHE, _JFT, 78.7),
    "noisy-student-b4": Weights("tf_efficientnet_b4.ns_jft_in1k", "EfficientNet-B4", 19_341_616, _APACHE, _JFT, 85.2),
    "noisy-student-b7": Weights("tf_efficientnet_b7.ns_jft_in1k", "EfficientNet-B7", 66_347_960, _APACHE, _JFT, 86.8),
    "noisy-student-l2": Weights("tf_efficientnet_l2.ns_jft_in1k", "EfficientNet-L2", 480_309_308, _APACHE, _JFT, 88.4),
}
"""None of these asks for consent before the download."""


def hub_name(source: str | Path) -> str | None:
    """`hf:organisation/model` of a source that is on the hub, by a short name too; None for a file or folder.

    A file or folder that is called like published weights comes first.
    """
    text = str(source)
    if text.startswith(HUB):
        return text
    if text.startswith(TIMM_HUB):
        return HUB + text.removeprefix(TIMM_HUB)
    known = WEIGHTS.get(text.lower())
    return None if known is None or Path(text).exists() else HUB + known.repository


def similar_name(text: str) -> str | None:
    """The short name that is most like a text, if any is."""
    return next(iter(get_close_matches(text.lower(), WEIGHTS, n=1, cutoff=0.6)), None)
