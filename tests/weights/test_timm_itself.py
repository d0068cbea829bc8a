"""timm itself as the judge: its folders opened by us, ours opened by it, and what its architectures fix."""

import json
import shutil
from dataclasses import replace

import pytest
import timm
import torch
import transformers as hf
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from support.tiny_models import LABELS, preprocess_for, random_images, random_model
from vitreous import UserError
from vitreous.weights.bundle import save_bundle
from vitreous.weights.source import open_weights
from vitreous.weights.timm import write_timm
from vitreous.weights.timm_config import architecture_heads, unsupported_reason
from vitreous.weights.timm_encoders import known_arguments

MODULES = ("vision_transformer", "vision_transformer_hybrid", "deit")
PLAIN = sorted({name for module in MODULES for name in timm.list_models(module=module)})
SAME = {"rtol": 1e-4, "atol": 2.5e-5}
MEAN, STD = [0.11, 0.22, 0.33], [0.44, 0.55, 0.66]

# Architecture, and timm's arguments that make it small.
SMALL = {"depth": 2, "img_size": 48}
OPENED = {
    "vit_tiny_patch16_224": {},
    "vit_small_patch16_224": {"embed_dim": 96},
    "vit_base_patch16_gap_224": {"embed_dim": 64},
    "vit_base_patch16_reg4_gap_256": {"embed_dim": 96},
    "vit_base_patch16_siglip_224": {"embed_dim": 96},
    "vit_base_patch16_siglip_gap_224": {"embed_dim": 96},
    "vit_so150m_patch16_reg4_map_256": {"embed_dim": 112},
    "vit_betwixt_patch16_reg1_gap_256": {"embed_dim": 80},
    "vit_wee_patch16_reg1_gap_256": {"embed_dim": 64},
    "vit_little_patch16_reg4_gap_256": {"embed_dim": 80},
    "vit_small_patch14_dinov2": {"embed_dim": 96, "img_size": 56},
    "vit_small_patch14_reg4_dinov2": {"embed_dim": 96, "img_size": 56},
    "vit_giant_patch14_dinov2": {"embed_dim": 96, "img_size": 56},
    "vit_giant_patch14_reg1_tipsv2": {"embed_dim": 96, "img_size": 56},
    "vit_gigantic_patch14_224": {"embed_dim": 64, "img_size": 56},
    "vit_huge_patch14_gap_224": {"embed_dim": 64, "img_size": 56},
    "vit_base_patch32_plus_256": {"embed_dim": 112, "img_size": 64},
    "vit_tiny_r_s16_p8_224": {"img_size": 64},
    "vit_small_r26_s32_224": {"embed_dim": 96, "img_size": 64},
    "vit_base_r50_s16_224": {"embed_dim": 96},
    "deit_tiny_distilled_patch16_224": {},
    "deit_small_patch16_224": {"embed_dim": 96},
    "deit3_medium_patch16_224": {"embed_dim": 64},
    "flexivit_small": {"embed_dim": 96},
    "vit_medium_patch16_gap_240": {"embed_dim": 64},
    "vit_base_patch16_224_miil": {"embed_dim": 96},
    "vit_so150m2_patch16_reg1_gap_256": {"embed_dim": 104},
    "eva_large_patch14_196": {"embed_dim": 64, "img_size": 56},
    "test_vit": {},
    "test_vit2": {},
}


def timm_model(architecture, classes, **arguments):
    torch.manual_seed(0)
    model = timm.create_model(architecture, num_classes=classes, **arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.1)
    return model


def timm_folder(place, model, architecture, arguments, *, weights, size):
    """What `timm.models.save_for_hf` writes, in either form of the weights."""
    place.mkdir()
    state = model.state_dict()
    save_file(state, place / weights) if weights.endswith("s") else torch.save(state, place / weights)
    pretrained = {
        "tag": "x",
        "input_size": [3, size, size],
        "fixed_input_size": True,
        "interpolation": "bilinear",
        "crop_pct": 0.81,
        "crop_mode": "center",
        "mean": MEAN,
        "std": STD,
        "num_classes": model.num_classes,
    }
    config = {
        "architecture": architecture,
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "global_pool": getattr(model, "global_pool", "") if isinstance(model, VisionTransformer) else "avg",
        "model_args": arguments,
        "pretrained_cfg": pretrained,
    }
    (place / "config.json").write_text(json.dumps(config))
    return place


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=pytest.mark.slow if "_r26_" in name or "_r50_" in name else ()) for name in OPENED],
)
def test_folders_of_timm_give_timms_logits(tmp_path, architecture):
    arguments = SMALL | OPENED[architecture]
    size = arguments["img_size"]
    images = torch.randn(2, 3, size, size)
    for classes in (0, 5):
        model = timm_model(architecture, classes, **arguments)
        with torch.inference_mode():
            expected = model(images)
        for weights in ("model.safetensors", "pytorch_model.bin"):
            folder = tmp_path / f"{classes} {weights}"
            found = open_weights(timm_folder(folder, model, architecture, arguments, weights=weights, size=size))
            assert found.model.config.heads == model.blocks[0].attn.num_heads
            p = found.preprocess
            assert (p.mean, p.std, p.crop, p.interpolation) == (tuple(MEAN), tuple(STD), 0.81, "bilinear")
            assert p.size == (size, size)
            with torch.inference_mode():
                torch.testing.assert_close(found.model(images), expected, **SAME)


@pytest.mark.slow
def test_the_table_of_heads_is_timms():
    """Every plain ViT of timm's: the number of heads from the name is that of its definition, or it is refused."""
    wrong, opened = {}, 0
    for architecture in PLAIN:
        if unsupported_reason(architecture):
            continue
        with torch.device("meta"):
            model = timm.create_model(architecture, depth=1)
        block = model.blocks[0]
        act = "SiLU" if "Glu" in type(block.mlp).__name__ else "GELU"
        known = known_arguments(architecture, {})
        gelu = {"gelu": "GELU", "gelu_tanh": "GELUTanh", "quick_gelu": "QuickGELU"}[known.get("act_layer", "gelu")]
        epsilon, act = known.get("norm_eps", 1e-6), act if act == "SiLU" else gelu
        ours = (architecture_heads(architecture), epsilon, "LayerNorm", act, False, "Block")
        theirs = (
            block.attn.num_heads,
            block.norm1.eps,
            type(block.norm1).__name__,
            type(block.mlp.act).__name__,
            model.pool_include_prefix,
            type(block).__name__,
        )
        opened += 1
        if ours != theirs:
            wrong[architecture] = (ours, theirs)
    assert not wrong
    assert opened > 100


def test_which_convolutional_networks_can_be_opened():
    """Of all that timm has with such names; some have the tensors of an EfficientNet and use them otherwise."""
    bits = {f"resnetv2_{size}_bit" for size in ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")}
    efficientnets = {
        f"{start}efficientnet_{size}" for start in ("", "tf_") for size in (*map("b{}".format, range(8)), "l2")
    }
    named = [*timm.list_models("resnetv2*"), *timm.list_models("*efficientnet*")]
    opened = {name for name in named if unsupported_reason(name) is None and not name.startswith("test_")}
    assert opened == bits | efficientnets


OTHERS = [
    *(
        "vit_small_patch16_rope_mixed_224",
        "vit_relpos_small_patch16_224",
        "cait_xxs24_224",
        "swin_tiny_patch4_window7_224",
    ),
    *("convit_tiny", "mixer_s16_224", "resnet18", "vit_base_patch16_rpn_224"),
    *(
        "aimv2_large_patch14_224",
        "vit_pwee_patch16_reg1_gap_256",
    ),
    *("vit_dwee_patch16_reg1_gap_256", "samvit_base_patch16", "vit_small_resnet26d_224", "convnext_atto"),
    *("resnetv2_18", "efficientnet_lite0", "efficientnet_b0_gn", "efficientnet_blur_b0", "tf_efficientnetv2_b0"),
]


@pytest.mark.slow
def test_a_type_that_cannot_be_opened_is_called_by_its_name(subtests, tmp_path):
    for architecture in OTHERS:
        with subtests.test(architecture):
            arguments = {"depth": 1} if architecture.startswith(("vit_", "beit", "eva", "aimv2")) else {}
            try:
                model = timm.create_model(architecture, num_classes=3, **arguments)
            except TypeError:
                model = timm.create_model(architecture, num_classes=3)
            folder = tmp_path / architecture
            timm_folder(folder, model, architecture, arguments, weights="pytorch_model.bin", size=224)
            with pytest.raises(UserError, match=architecture):
                open_weights(folder)
            shutil.rmtree(folder)  # up to 400 MB


CHANGES = [
    {},
    {"distilled": True},
    {"mlp": "relu", "channels": 1},
    {"pool": "mean", "norm_after_pool": True},
    {"pool": "mean", "class_token": False},
    {"pool": "attention"},
    {"registers": 4, "position_scope": "patches", "layer_scale": 0.1},
    {"registers": 2, "position_scope": "all"},
    {"qk_norm": True, "classes": 0, "mlp_width": 37},
    {"position": "none"},
    {"mlp": "swiglu", "layer_scale": 1e-5},
    {"mlp": "swiglu", "registers": 1, "position_scope": "patches", "mlp_width": 21},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_what_we_write_is_opened_by_timm(tmp_path, changes):
    """An export and a bundle, strictly loaded, with our logits, size, mean, crop and labels."""
    model = random_model(**changes)
    labels = LABELS[: model.config.classes]
    for size in (None, (24, 32)):
        preprocess = preprocess_for(model) if size is None else replace(preprocess_for(model), size=size)
        folders = tmp_path / f"export {size}", tmp_path / f"bundle {size}"
        write_timm(folders[0], model, preprocess, labels, {})
        save_bundle(folders[1], model, preprocess, labels)
        for folder in folders:
            theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
            assert theirs.state_dict().keys() == model.state_dict().keys()
            images = random_images(model)
            with torch.inference_mode():
                torch.testing.assert_close(theirs(images), model(images), **SAME)
                if size is not None:
                    larger = torch.randn(1, model.config.channels, *size)
                    torch.testing.assert_close(theirs(larger), model(larger), rtol=1e-3, atol=1e-3)
            data = timm.data.resolve_model_data_config(theirs)
            assert tuple(data["input_size"]) == (model.config.channels, *preprocess.size)
            assert (tuple(data["mean"]), tuple(data["std"])) == (preprocess.mean, preprocess.std)
            assert (data["crop_pct"], data["interpolation"]) == (preprocess.crop, preprocess.interpolation)
            assert tuple(theirs.pretrained_cfg["label_names"]) == labels


BARE = {
    "vit_tiny_patch16_224": "augreg_in21k_ft_in1k",
    "deit_tiny_distilled_patch16_224": "fb_in1k",
    "deit_base_distilled_patch16_384": "fb_in1k",
    "deit3_small_patch16_224": "fb_in22k_ft_in1k",
    "vit_base_patch16_siglip_224": "v2_webli",
    "vit_base_patch16_siglip_gap_384": "v2_webli",
    "vit_huge_patch14_gap_224": "in1k_ijepa",
    "vit_mediumd_patch16_reg4_gap_256": "sbb2_e200_in12k_ft_in1k",
    "vit_base_patch8_224": "dino",
    "vit_small_patch14_dinov2": "lvd142m",
    "vit_base_patch16_clip_224": "openai",
    "eva02_base_patch14_224": "mim_in22k",
    "vit_small_patch16_dinov3": "lvd1689m",
    "vit_pe_core_base_patch16_224": "fb",
    "beit_base_patch16_224": "in22k_ft_in22k_in1k",
    "vit_medium_patch16_rope_reg1_gap_256": "sbb_in1k",
}


@pytest.mark.parametrize("architecture", BARE)
def test_a_bare_file_has_the_mean_of_the_published_weights(tmp_path, architecture):
    """Tensors of the real width, for it may tell, and of one block."""
    published = timm.get_pretrained_cfg(f"{architecture}.{BARE[architecture]}")
    model = timm.create_model(architecture, depth=1, num_classes=published.num_classes)
    save_file({name: torch.zeros_like(value) for name, value in model.state_dict().items()}, tmp_path / "m.safetensors")
    found = open_weights(tmp_path / "m.safetensors").preprocess
    assert found.mean == pytest.approx(published.mean)
    if architecture.startswith("deit"):
        assert found.crop == published.crop_pct


def test_what_computes_otherwise_with_the_same_tensors_is_refused(tmp_path):
    model = timm.create_model("vit_base_patch16_rpn_224", depth=1, embed_dim=96, num_heads=2)
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    with pytest.raises(UserError, match=r"config\.json"):
        open_weights(tmp_path / "m.safetensors")


def test_which_models_with_rotary_positions_are_refused():
    """Learned frequencies, fewer heads of keys, and norms after the branches."""
    names = [name for name in timm.list_models(module="eva") if unsupported_reason(name) is not None]
    assert names
    assert all("rope_mixed" in name or "sapiens2" in name or "enormous" in name for name in names)


@pytest.mark.parametrize("classes", [0, 5])
def test_a_folder_of_transformers_timm_wrapper(tmp_path, classes):
    arguments = {"depth": 1, "embed_dim": 48, "num_heads": 3, "img_size": 32}
    config = hf.TimmWrapperConfig(architecture="vit_tiny_patch16_224", model_args=arguments, num_labels=classes or 2)
    kind = hf.TimmWrapperForImageClassification if classes else hf.TimmWrapperModel
    model = kind(config).eval()
    model.save_pretrained(tmp_path / "f")
    bundle = open_weights(tmp_path / "f")
    images = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        expected = model(images).logits if classes else model(images).pooler_output
        torch.testing.assert_close(bundle.model(images), expected, **SAME)
    assert bundle.labels == tuple(map(str, range(classes)))


def test_a_contradiction_between_config_and_tensors(tmp_path):
    model = timm_model("vit_tiny_patch16_224", 5, **SMALL)
    place = timm_folder(tmp_path / "f", model, "vit_tiny_patch16_224", SMALL, weights="model.safetensors", size=48)
    config = json.loads((place / "config.json").read_text())
    for field, value in {"depth": 3, "embed_dim": 96, "img_size": 64, "patch_size": 8, "reg_tokens": 1}.items():
        (place / "config.json").write_text(json.dumps({**config, "model_args": SMALL | {field: value}}))
        with pytest.raises(UserError, match=f"config.json .*{field} "):
            open_weights(place)
    for field in ("num_classes", "num_features"):
        (place / "config.json").write_text(json.dumps({**config, field: 7}))
        with pytest.raises(UserError, match=f"config.json .*{field} 7"):
            open_weights(place)
