"""Each layout of the table, made at a tiny size by timm or transformers with random weights: the features are theirs,
at two resolutions, and so are those of what is written back."""

import json
from dataclasses import replace

import pytest
import timm
import torch
import transformers as hf
from safetensors.torch import save_file
from timm.models import eva, vision_transformer

from support.layouts import HF, ROWS
from support.tiny_models import LABELS, preprocess_for, random_model
from vitreous import UserError
from vitreous.config.rope import Rope
from vitreous.weights.adapt import adapt
from vitreous.weights.bundle import Bundle
from vitreous.weights.formats import write_weights
from vitreous.weights.source import open_weights

MOST = 1e-5  # the greatest difference of the features, as a fraction of the largest where that is above 1


def randomise(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            one = 1.0 if name.endswith("weight") and parameter.ndim == 1 else 0.0
            spread = 0.02 if parameter.ndim < 2 else min(0.2, parameter[0].numel() ** -0.5)
            parameter.copy_(one + torch.randn(parameter.shape) * spread)
    return model.eval()


def made_by_timm(row, folder, size):
    model = randomise(timm.create_model(row.model, num_classes=row.classes, **row.arguments))
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    config = {
        "architecture": row.model,
        "num_classes": row.classes,
        "num_features": model.num_features,
        "global_pool": pool if isinstance(pool := getattr(model, "global_pool", ""), str) else "avg",
        "model_args": row.arguments,
        "pretrained_cfg": {"input_size": [3, size, size], "mean": [0.5] * 3, "std": [0.5] * 3},
    }
    (folder / "config.json").write_text(json.dumps(config))

    def features(images):
        side = images.shape[-1]
        if side == size or "img_size" not in row.arguments:
            return model.to(images.dtype)(images)
        twin = timm.create_model(row.model, num_classes=row.classes, **{**row.arguments, "dynamic_img_size": True})
        twin.load_state_dict(model.state_dict())
        return twin.eval()(images)

    return features


def foreign_state(names, model, shape):
    """Tensors under the names that OpenAI, OpenCLIP and Meta publish, of the shapes that a model of timm's has."""
    width, depth, tokens = (
        model.embed_dim,
        len(model.blocks),
        (shape["img_size"] // model.patch_embed.patch_size[0]) ** 2,
    )
    kernel, hidden = model.patch_embed.proj.weight.shape, model.blocks[0].mlp.fc2.weight.shape[1]
    shapes = {}
    for i in range(depth):
        if names == "dinov3":
            b = f"blocks.{i}."
            shapes |= {b + "attn.qkv.weight": (3 * width, width), b + "attn.qkv.bias": (3 * width,)}
            linear = {"attn.proj": (width, width)}
            if model.blocks[0].mlp.__class__.__name__ == "SwiGLU":
                linear |= {"mlp.w1": (hidden, width), "mlp.w2": (hidden, width), "mlp.w3": (width, hidden)}
            else:
                linear |= {"mlp.fc1": (hidden, width), "mlp.fc2": (width, hidden)}
            norms = ("norm1", "norm2")
            shapes |= {b + "ls1.gamma": (width,), b + "ls2.gamma": (width,)}
        else:
            b = f"visual.transformer.resblocks.{i}."
            shapes |= {b + "attn.in_proj_weight": (3 * width, width), b + "attn.in_proj_bias": (3 * width,)}
            linear = {"attn.out_proj": (width, width), "mlp.c_fc": (hidden, width), "mlp.c_proj": (width, hidden)}
            norms = ("ln_1", "ln_2")
        for name, size in linear.items():
            shapes |= {f"{b}{name}.weight": size, f"{b}{name}.bias": size[:1]}
        for name in norms:
            shapes |= {f"{b}{name}.weight": (width,), f"{b}{name}.bias": (width,)}
    if names == "dinov3":
        shapes |= {"cls_token": (1, 1, width), "storage_tokens": (1, 4, width), "mask_token": (1, width)}
        shapes |= {"patch_embed.proj.weight": kernel, "patch_embed.proj.bias": (width,)}
        shapes |= {"norm.weight": (width,), "norm.bias": (width,)}
    else:
        shapes |= {"visual.class_embedding": (width,), "visual.positional_embedding": (1 + tokens, width)}
        shapes |= {"visual.conv1.weight": kernel, "visual.proj": (width, 24), "ln_final.weight": (24,)}
        shapes |= {f"visual.ln_{x}.{kind}": (width,) for x in ("pre", "post") for kind in ("weight", "bias")}
    torch.manual_seed(0)
    state = {name: torch.randn(size) * (0.1 if len(size) > 1 else 0.02) for name, size in shapes.items()}
    for name in state:
        if name.endswith(("norm1.weight", "norm2.weight", "norm.weight", "ln_1.weight", "ln_2.weight", "gamma")):
            state[name] += 1
        if name.endswith(("pre.weight", "post.weight")):
            state[name] += 1
    if names == "openai":  # numbers beside the weights
        state |= {"input_resolution": torch.tensor(shape["img_size"]), "context_length": torch.tensor(77)}
    if names == "dinov3":
        d = width // model.blocks[0].attn.num_heads
        state["rope_embed.periods"] = (100 ** (torch.arange(d // 4) / (d // 4))).bfloat16()
        for i in range(depth):
            state[f"blocks.{i}.attn.qkv.bias_mask"] = torch.ones(3 * width)
            state[f"blocks.{i}.attn.qkv.bias"][width : 2 * width] = 0
    return state


def made_under_foreign_names(row, folder, size):
    arguments = {"num_classes": row.classes, **row.arguments, "global_pool": "token"}
    model = timm.create_model(row.model, **arguments)
    state = foreign_state(row.names, model, row.arguments)
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    convert = eva.checkpoint_filter_fn if row.names == "dinov3" else vision_transformer.checkpoint_filter_fn

    def features(images):
        twin = timm.create_model(row.model, **arguments, dynamic_img_size=True)
        twin.load_state_dict(convert(dict(state), twin))
        return twin.eval()(images)

    return features


def made_by_transformers(row, folder, size):
    name = row.model.removesuffix("WithProjection")
    for ending in ("ForImageClassification", "Model"):
        name = name.removesuffix(ending)
    kind = getattr(hf, row.model)
    model = randomise(kind(kind.config_class(**row.arguments)))
    model.save_pretrained(folder)

    def features(images):
        moved = {} if images.shape[-1] == size or "DINOv3" in row.model else {"interpolate_pos_encoding": True}
        return model(images, **moved)[row.reads]

    return features


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[pytest.mark.slow] * row.slow) for row in ROWS],
    ids=lambda row: f"{row.layout}: {row.model}",
)
def test_features_are_those_of_its_makers(row, tmp_path):
    size = row.arguments.get("img_size") or row.arguments.get("image_size", 64)
    size = size[0] if isinstance(size, list) else size
    make = made_under_foreign_names if row.names else made_by_timm if row.by == "timm" else made_by_transformers
    features = make(row, tmp_path / "theirs", size)
    bundle = open_weights(tmp_path / "theirs")
    if row.names == "dinov3":  # Meta's periods are bfloat16, timm computes them in float32
        assert bundle.model.config.rope.bfloat16
        bundle.model.config = replace(bundle.model.config, rope=replace(bundle.model.config.rope, bfloat16=False))
    patch = getattr(bundle.model.config, "patch", 32)
    kind = torch.float64 if row.double else torch.float32
    bundle.model.to(kind)
    batches = [torch.randn(2, 3, side, side, dtype=kind) for side in (size, size + 2 * patch)[: 1 + row.other]]
    with torch.inference_mode():
        for images in batches:
            expected = features(images)
            if row.reads == "last_hidden_state":
                expected = expected[:, 0]  # the class token
            assert expected.std() > 0.01
            most = MOST * max(1.0, expected.abs().max().item())
            torch.testing.assert_close(bundle.model(images), expected, rtol=0, atol=most)
        if not row.out:
            return
        out = write_weights(
            tmp_path / "ours", replace(bundle, model=bundle.model.float()), "huggingface" if row.reads else "timm"
        )
        again = open_weights(out)
        assert again.model.config == bundle.model.config
        if row.reads:
            theirs = getattr(hf, row.model).from_pretrained(out).eval()(batches[0])[row.reads]
            theirs = theirs[:, 0] if row.reads == "last_hidden_state" else theirs
        else:
            theirs = timm.create_model(f"local-dir:{out}", pretrained=True).eval().to(kind)(batches[0])
            bundle.model.to(kind)
        torch.testing.assert_close(theirs, bundle.model(batches[0]), rtol=0, atol=MOST * max(1.0, theirs.abs().max()))


TEXT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_the_vision_tower_of_a_whole_model(kind, tmp_path):
    """Its features are what the text tower is compared with; the text tower is ignored, and that is said."""
    more = {"projection_dim": 12} if kind == "CLIP" else {}
    config = getattr(hf, f"{kind}Config")(vision_config=HF, text_config=TEXT, **more)
    model = randomise(getattr(hf, f"{kind}Model")(config))
    model.save_pretrained(tmp_path / "theirs")
    bundle = open_weights(tmp_path / "theirs")
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        found = model.get_image_features(pixel_values=images)
        expected = getattr(found, "pooler_output", found)
        torch.testing.assert_close(bundle.model(images), expected, rtol=0, atol=MOST)
    assert any("text tower" in note for note in bundle.notes)
    classifier, _ = adapt(bundle.model, bundle.preprocess, classes=3, image_size=48)
    assert classifier(torch.randn(1, 3, 48, 48)).shape == (1, 3)
    assert not classifier.config.projection


@pytest.mark.parametrize("kind", ["Aimv2Vision", "Siglip2Vision", "Sapiens2"])
def test_what_is_not_opened_is_called_by_its_name(kind, tmp_path):
    model_type = getattr(hf, f"{kind}Config").model_type
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    save_file({"embeddings.patch_embedding.weight": torch.zeros(4, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=model_type):
        open_weights(tmp_path)


def test_an_encoder_that_a_format_cannot_express_is_refused(tmp_path):
    """Nothing is written where reading it back would give another model."""
    for changes in ({"norm_pre": True, "patch_bias": True}, {"position": "none", "rope": Rope(bfloat16=True)}):
        model = random_model(**changes)
        bundle = Bundle(model, preprocess_for(model), LABELS[: model.config.classes])
        with pytest.raises(UserError):
            write_weights(tmp_path / "out", bundle, "huggingface")
        assert not (tmp_path / "out").exists()


def test_a_siglip_classifier_is_refused(tmp_path):
    """It reads the mean of the patches, although the file has the attention pooling too."""
    model = hf.SiglipForImageClassification(hf.SiglipConfig(vision_config=HF, text_config=TEXT, num_labels=3))
    model.save_pretrained(tmp_path / "theirs")
    with pytest.raises(UserError, match="SiglipForImageClassification"):
        open_weights(tmp_path / "theirs")


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_a_trained_classifier_is_not_lost_on_the_way_to_hugging_face(kind, tmp_path):
    """transformers' encoders of these kinds would leave it out without a word."""
    model = getattr(hf, f"{kind}VisionModel")(getattr(hf, f"{kind}VisionConfig")(**HF))
    randomise(model).save_pretrained(tmp_path / "theirs")
    bundle = open_weights(tmp_path / "theirs")
    tuned, _ = adapt(bundle.model, bundle.preprocess, classes=5)
    with pytest.raises(UserError, match="classifier"):
        write_weights(tmp_path / "out", replace(bundle, model=tuned, labels=LABELS), "huggingface")
    assert not (tmp_path / "out").exists()


def test_openais_weights_compute_with_quick_gelu_in_timms_folder_too(tmp_path):
    """Their repository names the architecture without it; its tag says whose weights they are."""
    model = randomise(
        timm.create_model("vit_base_patch16_clip_quickgelu_224", embed_dim=32, depth=1, num_heads=2, num_classes=4)
    )
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    described = {"architecture": "vit_base_patch16_clip_224", "num_classes": 4, "num_features": 32}
    described["model_args"] = {"embed_dim": 32, "depth": 1, "num_heads": 2}
    for tag, activation in {"openai": "quick-gelu", "laion2b": "gelu"}.items():
        described["pretrained_cfg"] = {"tag": tag, "input_size": [3, 224, 224]}
        (tmp_path / "config.json").write_text(json.dumps(described))
        assert open_weights(tmp_path).model.config.mlp == activation


@pytest.mark.parametrize("maker", ["timm", "Hugging Face"])
def test_a_side_that_patches_do_not_divide(maker, tmp_path):
    """So400m/14 at 384: its own convolution leaves 6 pixels out, so images of 378 pixels have all that it looks at."""
    images = torch.randn(1, 3, 42, 42)
    if maker == "timm":
        sizes = {"embed_dim": 32, "depth": 1, "num_heads": 2}
        model = randomise(timm.create_model("vit_so400m_patch14_siglip_384", img_size=48, **sizes))
        save_file(model.state_dict(), tmp_path / "model.safetensors")
        pretrained = {"input_size": [3, 48, 48], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0}
        described = {"architecture": "vit_so400m_patch14_siglip_384", "num_classes": 0, "num_features": 32}
        described |= {"pretrained_cfg": pretrained, "model_args": sizes}
        (tmp_path / "config.json").write_text(json.dumps(described))
        theirs = model.eval()(torch.nn.functional.pad(images, (0, 6, 0, 6)))
    else:
        model = randomise(hf.SiglipVisionModel(hf.SiglipVisionConfig(**{**HF, "image_size": 48, "patch_size": 14})))
        model.save_pretrained(tmp_path)
        theirs = model.eval()(torch.nn.functional.pad(images, (0, 6, 0, 6))).pooler_output
    bundle = open_weights(tmp_path)
    assert bundle.preprocess.size == bundle.model.config.image_size == (42, 42)
    torch.testing.assert_close(bundle.model(images), theirs, rtol=0, atol=MOST)
