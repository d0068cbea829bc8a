"""What config.json tells timm: names and arguments as timm's own registry and constructor have them."""

from support.tiny_models import TINY, VARIANTS
from vitreous import ViTConfig, preset
from vitreous.config.data import Preprocess
from vitreous.weights.timm_config import UNKNOWN_ARCHITECTURE, timm_config, to_timm

# The fields of timm's PretrainedCfg; it refuses any other in pretrained_cfg.
PRETRAINED_FIELDS = {
    *("url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag", "custom_load"),
    *("input_size", "test_input_size", "min_input_size", "fixed_input_size", "interpolation", "crop_pct"),
    *("test_crop_pct", "crop_mode", "mean", "std", "num_classes", "label_offset", "label_names"),
    *("label_descriptions", "pool_size", "test_pool_size", "first_conv", "classifier", "license", "description"),
    *("origin_url", "paper_name", "paper_ids", "notes"),
}


def describe(config, labels=(), **changes):
    flat = (0.5,) * config.channels
    return timm_config(config, Preprocess(**{"size": config.image_size, "mean": flat, "std": flat, **changes}), labels)


def test_a_plain_model_is_said_by_its_name_alone():
    architectures = {
        "Ti/16": "vit_tiny_patch16_224",
        "Ti/16@384": "vit_tiny_patch16_384",
        "S/8": "vit_small_patch8_224",
        "B/16": "vit_base_patch16_224",
        "L/14": "vit_large_patch14_224",
        "H/14": "vit_huge_patch14_224",
        "g/14": "vit_giant_patch14_224",
    }
    for name, architecture in architectures.items():
        described = describe(preset(name), crop=0.9)
        assert described["architecture"] == architecture
        assert "model_args" not in described
        assert described["pretrained_cfg"]["crop_pct"] == 0.9
        assert described["pretrained_cfg"]["input_size"] == [3, *preset(name).image_size]


def test_a_distilled_model_has_deits_name():
    assert describe(preset("S/16", distilled=True))["architecture"] == "deit_small_distilled_patch16_224"
    assert describe(preset("B/16@384", distilled=True))["architecture"] == "deit_base_distilled_patch16_384"
    odd = describe(preset("L/16", distilled=True))
    assert odd["architecture"] == "deit_base_distilled_patch16_224"
    assert odd["model_args"] == {"embed_dim": 1024, "depth": 24, "num_heads": 16}


ARGUMENTS = {
    "Ti/4@32": ({}, {"img_size": [32, 32], "patch_size": 4}),
    "N/4@28": ({"channels": 1}, {"img_size": [28, 28], "patch_size": 4, "depth": 6, "in_chans": 1}),
    "B/16@288": ({}, {"img_size": [288, 288]}),
    "B/16": (
        {"pool": "mean", "class_token": False, "norm_after_pool": True},
        {"class_token": False, "global_pool": "avg"},
    ),
    "S/16": ({"pool": "mean"}, {"global_pool": "avg", "fc_norm": False}),
    "S/14": (
        {"registers": 4, "position_scope": "patches", "layer_scale": 1e-5, "qk_norm": True},
        {"patch_size": 14, "reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5, "qk_norm": True},
    ),
    "S/32": (
        {"pool": "attention", "mlp": "relu", "position": "none"},
        {"global_pool": "map", "act_layer": "relu", "pos_embed": "none"},
    ),
}


def test_what_the_name_does_not_say_is_an_argument():
    for name, (changes, arguments) in ARGUMENTS.items():
        assert describe(preset(name, **changes)).get("model_args", {}) == arguments, name


def test_timm_makes_the_same_mlp_of_the_ratio():
    for width in (16, 48, 100, 1408):
        for mlp_width in range(width, 5 * width, 7):
            config = ViTConfig(**{**TINY, "width": width, "mlp_width": mlp_width})
            ratio = describe(config)["model_args"].get("mlp_ratio", 4)
            assert int(width * ratio) == mlp_width


def test_what_timm_has_no_word_for_is_not_given_a_wrong_name(subtests):
    unknown = {"learned-2d", "sincos-2d", "relative", "norm after", "tanh classifier", "class and mean"}
    for name in (*unknown, "padded"):
        with subtests.test(name):
            config = ViTConfig(**{**TINY, **VARIANTS[name]})
            described = describe(config)
            assert described["architecture"] == UNKNOWN_ARCHITECTURE
            assert to_timm(config).unsupported in described["timm"]


def test_every_variant_has_fields_that_timm_accepts(subtests):
    for name, changes in VARIANTS.items():
        with subtests.test(name):
            config = ViTConfig(**{**TINY, **changes})
            described = describe(config, labels=["x"] * config.classes)
            assert set(described["pretrained_cfg"]) <= PRETRAINED_FIELDS
            outputs = config.projection or len(described["label_names"])
            assert described["num_classes"] == described["pretrained_cfg"]["num_classes"] == outputs


def test_positions_of_another_size_than_the_images_are_resampled_by_timm():
    described = describe(preset("Ti/16"), size=(288, 288))
    assert described["model_args"] == {"img_size": [224, 224], "dynamic_img_size": True}
    assert described["pretrained_cfg"]["fixed_input_size"] is False
    described = describe(preset("B/16@384"), size=(224, 224))
    assert described["architecture"] == "vit_base_patch16_384"
    assert described["model_args"] == {"img_size": [384, 384], "dynamic_img_size": True}, "timm's own default is 224"
