"""Published weights that have a short name here: where they are on the Hugging Face hub, and what is known of them."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

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
    measured: str  # how: top-1 of its classifier, linear probe, fine-tuned, zero-shot

    @property
    def repository(self) -> str:
        return f"timm/{self.timm_name}"

    @property
    def megabytes(self) -> float:
        """The size of the download, float32."""
        return 4 * self.parameters / 1e6


_TABLE = """
# Steiner et al. 2021, "How to train your ViT?"; accuracies: timm's results-imagenet.csv
ti16|vit_tiny_patch16_224.augreg_in21k_ft_in1k|ViT-Ti/16|5717416|apache-2.0|IN-21k, IN-1k|75.5|top-1
s32|vit_small_patch32_224.augreg_in21k_ft_in1k|ViT-S/32|22878952|apache-2.0|IN-21k, IN-1k|76.0|top-1
s16|vit_small_patch16_224.augreg_in21k_ft_in1k|ViT-S/16|22050664|apache-2.0|IN-21k, IN-1k|81.4|top-1
s16-384|vit_small_patch16_384.augreg_in21k_ft_in1k|ViT-S/16@384|22196584|apache-2.0|IN-21k, IN-1k|83.8|top-1
b32|vit_base_patch32_224.augreg_in21k_ft_in1k|ViT-B/32|88224232|apache-2.0|IN-21k, IN-1k|80.7|top-1
b16|vit_base_patch16_224.augreg2_in21k_ft_in1k|ViT-B/16|86567656|apache-2.0|IN-21k, IN-1k|85.1|top-1
b16-384|vit_base_patch16_384.augreg_in21k_ft_in1k|ViT-B/16@384|86859496|apache-2.0|IN-21k, IN-1k|86.0|top-1
l16|vit_large_patch16_224.augreg_in21k_ft_in1k|ViT-L/16|304326632|apache-2.0|IN-21k, IN-1k|85.8|top-1
l16-384|vit_large_patch16_384.augreg_in21k_ft_in1k|ViT-L/16@384|304715752|apache-2.0|IN-21k, IN-1k|87.1|top-1
r26-s32|vit_small_r26_s32_224.augreg_in21k_ft_in1k|R26+S/32|36431912|apache-2.0|IN-21k, IN-1k|81.9|top-1
r50-l32|vit_large_r50_s32_224.augreg_in21k_ft_in1k|R50+L/32|328994856|apache-2.0|IN-21k, IN-1k|84.4|top-1
# Dosovitskiy et al. 2020, the paper's own
b16-paper|vit_base_patch16_224.orig_in21k_ft_in1k|ViT-B/16|86567656|apache-2.0|IN-21k, IN-1k|81.8|top-1
# Touvron et al. 2021, 2022
deit-s16|deit_small_patch16_224.fb_in1k|DeiT-S/16|22050664|apache-2.0|IN-1k|79.8|top-1
deit-b16|deit_base_distilled_patch16_224.fb_in1k|DeiT-B/16|87338192|apache-2.0|IN-1k|83.4|top-1
deit3-s16|deit3_small_patch16_224.fb_in22k_ft_in1k|DeiT III S/16|22059496|apache-2.0|IN-21k, IN-1k|83.1|top-1
deit3-b16|deit3_base_patch16_224.fb_in22k_ft_in1k|DeiT III B/16|86585320|apache-2.0|IN-21k, IN-1k|85.7|top-1
# Peng et al. 2022, Fang et al. 2023
beitv2-b16|beitv2_base_patch16_224.in1k_ft_in22k_in1k|BEiTv2 B/16|86530984|apache-2.0|IN-21k, IN-1k|86.5|top-1
eva02-s14|eva02_small_patch14_336.mim_in22k_ft_in1k|EVA-02 S/14@336|22129000|mit|IN-21k, IN-1k|85.7|top-1
# without labels; accuracies: the papers'
dino-s16|vit_small_patch16_224.dino|DINO S/16|21665664|apache-2.0|IN-1k|77.0|linear probe
dino-s8|vit_small_patch8_224.dino|DINO S/8|21670272|apache-2.0|IN-1k|79.7|linear probe
dino-b16|vit_base_patch16_224.dino|DINO B/16|85798656|apache-2.0|IN-1k|78.2|linear probe
mae-b16|vit_base_patch16_224.mae|MAE B/16|85798656|cc-by-nc-4.0|IN-1k|83.6|fine-tuned
mae-l16|vit_large_patch16_224.mae|MAE L/16|303301632|cc-by-nc-4.0|IN-1k|85.9|fine-tuned
dinov2-s14|vit_small_patch14_dinov2.lvd142m|DINOv2 S/14|22056192|apache-2.0|LVD-142M|81.1|linear probe
dinov2-b14|vit_base_patch14_dinov2.lvd142m|DINOv2 B/14|86579712|apache-2.0|LVD-142M|84.5|linear probe
dinov2-l14|vit_large_patch14_dinov2.lvd142m|DINOv2 L/14|304367616|apache-2.0|LVD-142M|86.3|linear probe
dinov2-g14|vit_giant_patch14_dinov2.lvd142m|DINOv2 g/14|1136479232|apache-2.0|LVD-142M|86.5|linear probe
dinov2-s14-reg|vit_small_patch14_reg4_dinov2.lvd142m|DINOv2 S/14 reg4|22057344|apache-2.0|LVD-142M|80.9|linear probe
dinov2-b14-reg|vit_base_patch14_reg4_dinov2.lvd142m|DINOv2 B/14 reg4|86582016|apache-2.0|LVD-142M|84.6|linear probe
dinov2-l14-reg|vit_large_patch14_reg4_dinov2.lvd142m|DINOv2 L/14 reg4|304370688|apache-2.0|LVD-142M|86.7|linear probe
dinov3-s16|vit_small_patch16_dinov3.lvd1689m|DINOv3 S/16|21586944|dinov3-license|LVD-1689M|87.0|linear, ReaL
dinov3-s16plus|vit_small_plus_patch16_dinov3.lvd1689m|DINOv3 S+/16|28683264|dinov3-license|LVD-1689M|88.0|linear, ReaL
dinov3-b16|vit_base_patch16_dinov3.lvd1689m|DINOv3 B/16|85641216|dinov3-license|LVD-1689M|89.3|linear, ReaL
dinov3-l16|vit_large_patch16_dinov3.lvd1689m|DINOv3 L/16|303079424|dinov3-license|LVD-1689M|90.2|linear, ReaL
dinov3-h16plus|vit_huge_plus_patch16_dinov3.lvd1689m|DINOv3 H+/16|840509440|dinov3-license|LVD-1689M|90.3|linear, ReaL
# from images and texts; accuracies: the papers'
clip-b32|vit_base_patch32_clip_224.openai|CLIP B/32|87849728|apache-2.0|WIT-400M|63.2|zero-shot
clip-b16|vit_base_patch16_clip_224.openai|CLIP B/16|86193152|apache-2.0|WIT-400M|68.6|zero-shot
clip-l14|vit_large_patch14_clip_224.openai|CLIP L/14|303966976|apache-2.0|WIT-400M|75.3|zero-shot
siglip2-b16|vit_base_patch16_siglip_224.v2_webli|SigLIP2 B/16|92884224|apache-2.0|WebLI|78.2|zero-shot
# the systems that the paper compares with: Kolesnikov et al. 2020, Xie et al. 2020
bit-r50x1|resnetv2_50x1_bit.goog_in21k_ft_in1k|BiT-M R50x1|25549352|apache-2.0|IN-21k, IN-1k|80.3|top-1
bit-r101x1|resnetv2_101x1_bit.goog_in21k_ft_in1k|BiT-M R101x1|44541480|apache-2.0|IN-21k, IN-1k|82.3|top-1
bit-r152x4|resnetv2_152x4_bit.goog_in21k_ft_in1k|BiT-M R152x4|936533224|apache-2.0|IN-21k, IN-1k|84.9|top-1
noisy-student-b0|tf_efficientnet_b0.ns_jft_in1k|EfficientNet-B0|5288548|apache-2.0|JFT-300M, IN-1k|78.7|top-1
noisy-student-b4|tf_efficientnet_b4.ns_jft_in1k|EfficientNet-B4|19341616|apache-2.0|JFT-300M, IN-1k|85.2|top-1
noisy-student-b7|tf_efficientnet_b7.ns_jft_in1k|EfficientNet-B7|66347960|apache-2.0|JFT-300M, IN-1k|86.8|top-1
noisy-student-l2|tf_efficientnet_l2.ns_jft_in1k|EfficientNet-L2|480309308|apache-2.0|JFT-300M, IN-1k|88.4|top-1
"""
"""Name, timm's name, model, parameters, licence, data, accuracy, how it was measured."""


def _read_row(row: str) -> tuple[str, Weights]:
    name, timm_name, model, parameters, licence, data, accuracy, measured = row.split("|")
    return name, Weights(timm_name, model, int(parameters), licence, data, float(accuracy), measured)


WEIGHTS = dict(_read_row(row) for row in _TABLE.splitlines() if row and not row.startswith("#"))
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
