"""Every layout of checkpoints that is opened, made by those who define it: what `tests/weights/test_layouts.py` walks,
and what the table in docs/checkpoints.md is made from. Plain data, without torch.
"""

from dataclasses import dataclass, field
from typing import Any

TIMM = {"depth": 2, "embed_dim": 64, "num_heads": 4, "img_size": 64}
ONE_HEAD = TIMM | {"num_heads": 1}  # of the usual 64 numbers: these files do not say how many
TIMM_14 = TIMM | {"img_size": 56}
HF = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}


BEIT = {"use_relative_position_bias": True, "num_labels": 5}


@dataclass(frozen=True)
class Row:
    layout: str  # as the table calls it
    model: str  # timm's architecture, or the class in transformers
    arguments: dict[str, Any] = field(default_factory=dict)
    reads: str = ""  # the field of transformers' output that is compared; none for timm
    out: bool = True  # whether it can be written in this layout too
    other: bool = True  # whether it is compared at another resolution too
    classes: int = 0
    slow: bool = False
    double: bool = False  # compared in float64: rounding alone is 2e-5 in so many convolutions
    names: str = ""  # of the tensors, where they are not those of `model`: timm itself converts them

    @property
    def by(self) -> str:
        return "transformers" if self.reads else "timm"


def _timm(layout, *models, arguments=TIMM, **more):
    return [Row(layout, model, arguments, **more) for model in models]


ROWS = [
    *_timm("timm CLIP", "vit_base_patch16_clip_224", "vit_base_patch32_clip_256"),
    *_timm("timm CLIP, QuickGELU", "vit_base_patch16_clip_quickgelu_224", classes=8),
    *_timm("timm SigLIP", "vit_base_patch16_siglip_224", "vit_base_patch16_siglip_gap_224"),
    *_timm("timm SigLIP2", "vit_base_patch32_siglip_256", "vit_so400m_patch16_siglip_256"),
    *_timm(
        "timm DINOv3",
        *("vit_small_patch16_dinov3", "vit_small_plus_patch16_dinov3", "vit_base_patch16_dinov3_qkvb"),
        *("vit_large_patch16_dinov3", "vit_huge_plus_patch16_dinov3", "vit_7b_patch16_dinov3"),
    ),
    *_timm("timm EVA", "eva_giant_patch14_224", arguments=TIMM_14),
    *_timm(
        "timm EVA-02",
        "eva02_tiny_patch14_224",
        "eva02_base_patch14_224",
        arguments=TIMM_14,
    ),
    *_timm(
        "timm EVA-02", "eva02_base_patch16_clip_224", "eva02_small_patch14_224", arguments=TIMM | {"patch_size": 16}
    ),
    *_timm("timm ViT with rotary positions", "vit_medium_patch16_rope_reg1_gap_256", "vit_small_patch16_rope_ape_224"),
    *_timm("timm ViT with rotary positions", "vit_small_patch16_rope_224", "vit_mediumd_patch16_rope_reg1_gap_256"),
    *_timm(
        "timm Perception Encoder",
        *("vit_pe_core_base_patch16_224", "vit_pe_core_small_patch16_384"),
        *("vit_pe_lang_large_patch14_448", "vit_pe_spatial_tiny_patch16_512", "vit_pe_core_gigantic_patch14_448"),
        arguments=TIMM_14 | {"num_heads": 4, "patch_size": 14},
    ),
    *_timm("timm BEiT", "beit_base_patch16_224", "beitv2_base_patch16_224", other=False),
    *_timm("timm InternViT", "vit_intern300m_patch14_448", arguments=TIMM_14),
    *_timm("timm TIPSv2", "vit_giant_patch14_reg1_tipsv2", arguments=TIMM_14 | {"embed_dim": 96}),
    *_timm("timm ViT", "vit_tiny_patch16_224", "vit_base_patch16_reg4_gap_256", classes=5),
    *_timm("timm DeiT III", "deit3_medium_patch16_224", classes=5),
    *_timm(
        "timm DINOv2",
        *("vit_small_patch14_dinov2", "vit_giant_patch14_reg4_dinov2"),
        arguments=TIMM_14 | {"embed_dim": 96},
    ),
    Row("Hugging Face CLIP", "CLIPVisionModel", HF | {"hidden_act": "gelu"}, "pooler_output"),
    Row("Hugging Face CLIP", "CLIPVisionModelWithProjection", HF | {"projection_dim": 12}, "image_embeds"),
    Row("Hugging Face SigLIP", "SiglipVisionModel", HF, "pooler_output"),
    Row("Hugging Face DINOv3", "DINOv3ViTModel", HF | {"num_register_tokens": 4}, "pooler_output"),
    Row(
        "Hugging Face DINOv3",
        "DINOv3ViTModel",
        HF | {"num_register_tokens": 4, "use_gated_mlp": True, "hidden_act": "silu"},
        "pooler_output",
    ),
    Row("Hugging Face I-JEPA", "IJepaForImageClassification", HF | {"num_labels": 5}, "logits", out=False, classes=5),
    Row("Hugging Face ViTMSN", "ViTMSNModel", HF, "last_hidden_state", out=False),
    *(
        Row("Hugging Face BEiT", name, HF | BEIT, reads, out=False, other=False)
        for name, reads in (("BeitModel", "pooler_output"), ("BeitForImageClassification", "logits"))
    ),
    Row(
        "Hugging Face InternViT",
        "InternVLVisionModel",
        HF | {"image_size": [32, 32], "patch_size": [8, 8], "attention_bias": True},
        "last_hidden_state",
        out=False,
        other=False,
    ),
    Row("Hugging Face ViT", "ViTForImageClassification", HF | {"num_labels": 5}, "logits", classes=5),
    Row("Hugging Face ViT", "ViTModel", HF, "last_hidden_state"),
    Row("Hugging Face DeiT", "DeiTForImageClassificationWithTeacher", HF | {"num_labels": 5}, "logits", other=False),
    Row("Hugging Face DeiT", "DeiTForImageClassification", HF | {"num_labels": 5}, "logits", other=False),
    Row("Hugging Face DINOv2", "Dinov2Model", HF | {"mlp_ratio": 2}, "pooler_output", other=False),
    Row("Hugging Face DINOv2", "Dinov2ForImageClassification", HF | {"num_labels": 5}, "logits", other=False),
    Row(
        "Hugging Face DINOv2", "Dinov2WithRegistersModel", HF | {"num_register_tokens": 4}, "pooler_output", other=False
    ),
    *_timm(
        "timm ViT",
        "vit_small_patch32_224",
        "vit_base_patch8_224",
        "vit_large_patch14_224",
        "vit_huge_patch14_224",
        arguments=TIMM | {"patch_size": 16},
    ),
    *_timm("timm ViT", "vit_so150m_patch16_reg4_map_256", "vit_medium_patch16_gap_256", "flexivit_small"),
    *_timm("timm DeiT", "deit_tiny_patch16_224", "deit_base_distilled_patch16_224", classes=5),
    *_timm("timm hybrid", "vit_tiny_r_s16_p8_224", arguments={"depth": 2, "img_size": 64}, classes=5),
    *_timm("timm EVA", "eva_large_patch14_196", arguments=TIMM_14),
    *_timm("timm BiT", "resnetv2_50x1_bit", arguments={}, classes=5, slow=True, double=True),
    *_timm("timm EfficientNet", "tf_efficientnet_b0", "efficientnet_b0", arguments={}, classes=5, slow=True),
    *_timm(
        "timm CLIP",
        "vit_large_patch14_clip_336",
        "vit_huge_patch14_clip_224",
        "vit_xsmall_patch16_clip_224",
        arguments=TIMM_14 | {"patch_size": 14},
    ),
    *_timm("timm CLIP, QuickGELU", "vit_large_patch14_clip_quickgelu_336", arguments=TIMM_14),
    *_timm("timm SigLIP", "vit_so400m_patch14_siglip_384", arguments=TIMM_14),
    *_timm("timm SigLIP2", "vit_giantopt_patch16_siglip_384", "vit_large_patch16_siglip_512"),
    *_timm("timm DINOv3", "vit_small_plus_patch16_dinov3_qkvb", "vit_small_patch16_lingbot"),
    *_timm("timm EVA-02", "eva02_large_patch14_448", "eva02_tiny_patch14_336", arguments=TIMM_14),
    *_timm(
        "timm Perception Encoder",
        "vit_pe_spatial_gigantic_patch14_448",
        "vit_pe_lang_gigantic_patch14_448",
        arguments=TIMM_14 | {"patch_size": 14},
    ),
    Row(
        "OpenAI CLIP",
        "vit_base_patch16_clip_quickgelu_224",
        TIMM | {"num_heads": 1},
        out=False,
        classes=24,
        names="openai",
    ),
    Row("OpenCLIP", "vit_base_patch16_clip_224", TIMM | {"num_heads": 1}, out=False, classes=24, names="openclip"),
    Row("DINOv3", "vit_small_patch16_dinov3_qkvb", TIMM, out=False, names="dinov3"),
    Row("DINOv3", "vit_small_plus_patch16_dinov3_qkvb", TIMM, out=False, names="dinov3"),
]
