"""Each layout of the table, made at a tiny size by timm or transformers with random weights: the features are theirs,
at two resolutions, and so are those of what is written back."""

import json

import pytest
import timm
import torch
import transformers as hf
from safetensors.torch import save_file

from support.layouts import ROWS
from vitreous.weights.formats import write_weights
from vitreous.weights.source import open_weights

MOST = 1e-5  # greatest difference of the features, of the order of 1


def randomise(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            one = 1.0 if name.endswith("weight") and parameter.ndim == 1 else 0.0
            spread = 0.02 if parameter.ndim == 1 else min(0.2, parameter[0].numel() ** -0.5)
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
        "global_pool": model.global_pool,
        "model_args": row.arguments,
        "pretrained_cfg": {"input_size": [3, size, size], "mean": [0.5] * 3, "std": [0.5] * 3},
    }
    (folder / "config.json").write_text(json.dumps(config))

    def features(images):
        side = images.shape[-1]
        if side == size:
            return model(images)
        twin = timm.create_model(row.model, num_classes=row.classes, **{**row.arguments, "dynamic_img_size": True})
        twin.load_state_dict(model.state_dict())
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
    size = row.arguments.get("img_size") or row.arguments["image_size"]
    make = made_by_timm if row.by == "timm" else made_by_transformers
    features = make(row, tmp_path / "theirs", size)
    bundle = open_weights(tmp_path / "theirs")
    patch = bundle.model.config.patch
    batches = [torch.randn(2, 3, side, side) for side in (size, size + 2 * patch)[: 1 + row.other]]
    with torch.inference_mode():
        for images in batches:
            expected = features(images)
            assert expected.std() > 0.01
            torch.testing.assert_close(bundle.model(images), expected, rtol=0, atol=MOST)
        if not row.out:
            return
        out = write_weights(tmp_path / "ours", bundle, "huggingface" if row.reads else "timm")
        again = open_weights(out)
        assert again.model.config == bundle.model.config
        if row.reads:
            theirs = getattr(hf, row.model).from_pretrained(out).eval()(batches[0])[row.reads]
        else:
            theirs = timm.create_model(f"local-dir:{out}", pretrained=True).eval()(batches[0])
        torch.testing.assert_close(theirs, bundle.model(batches[0]), rtol=0, atol=MOST)
