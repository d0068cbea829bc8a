"""The pixels that a model sees: ours and those of `transformers`' own processors, for images of ordinary shapes."""

import json

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

from vitreous import UserError, preset
from vitreous.config.data import Preprocess
from vitreous.data.augment import eval_view, normalise
from vitreous.data.batch_augment import eval_batch
from vitreous.weights.processor import default_processor, from_processor, to_processor

CONFIG = preset("B/16")
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}

# As the hub has them: google/vit-base-patch16-224, facebook/deit-base-distilled-patch16-224, vit-mae-base, dinov2-base.
PUBLISHED = {
    "vit": {"do_normalize": True, "do_resize": True, **HALF, "resample": 2, "size": 224},
    "vit, newer": {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 224, "width": 224},
        "resample": 2,
        "rescale_factor": 0.00392156862745098,
        **HALF,
    },
    "deit": {
        "feature_extractor_type": "DeiTFeatureExtractor",
        "do_center_crop": True,
        "crop_size": 224,
        "size": 256,
        "resample": 3,
        **IMAGENET,
    },
    "mae": {"feature_extractor_type": "ViTFeatureExtractor", "size": 224, "resample": 3, **IMAGENET},
    "dinov2": {
        "image_processor_type": "BitImageProcessor",
        "do_center_crop": True,
        "do_convert_rgb": True,
        "crop_size": {"height": 224, "width": 224},
        "size": {"shortest_edge": 256},
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        **IMAGENET,
    },
}
PROCESSORS = {
    "vit": hf.models.vit.image_processing_pil_vit.ViTImageProcessorPil,
    "vit, newer": hf.models.vit.image_processing_pil_vit.ViTImageProcessorPil,
    "deit": hf.models.deit.image_processing_pil_deit.DeiTImageProcessorPil,
    "mae": hf.models.vit.image_processing_pil_vit.ViTImageProcessorPil,
    "dinov2": hf.models.bit.image_processing_pil_bit.BitImageProcessorPil,
}
SHAPES = [(500, 375), (333, 501), (256, 256), (640, 427), (301, 299), (224, 224), (180, 150)]


def make_image(width, height):
    """Waves, edges and noise."""
    rng = np.random.default_rng(width * 1000 + height)
    y, x = np.mgrid[:height, :width]
    waves = 127 + 80 * np.sin(x[..., None] / (5, 9, 17)) * np.cos(y[..., None] / (7, 4, 23))
    noise = rng.integers(-40, 40, (height, width, 3))
    return Image.fromarray(np.clip(waves + noise, 0, 255).astype(np.uint8))


def seen(image, preprocess):
    return normalise(eval_view(image, preprocess)[None], preprocess)[0]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_same_pixels_as_their_processor(subtests, name):
    said = PUBLISHED[name]
    preprocess = from_processor(said, CONFIG, "here")
    processor = PROCESSORS[name](**{k: v for k, v in said.items() if not k.endswith("_type")})
    for shape in SHAPES:
        with subtests.test(str(shape)):
            image = make_image(*shape)
            expected = processor(image, return_tensors="pt")["pixel_values"][0]
            torch.testing.assert_close(seen(image, preprocess), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["vit", "dinov2"])
def test_a_batch_in_memory_is_seen_alike(name):
    preprocess = from_processor(PUBLISHED[name], CONFIG, "here")
    image = make_image(301, 299)
    batch = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    assert eval_batch(batch, preprocess)[0].equal(eval_view(image, preprocess))


OURS = {
    "cover, cropped": Preprocess(crop=0.875, resize="cover-floor"),
    "cover, whole": Preprocess(size=(96, 96), interpolation="bilinear", resize="cover-floor"),
    "stretch": Preprocess(size=(96, 128), resize="stretch", interpolation="lanczos"),
    "stretch, cropped, not square": Preprocess(size=(224, 160), crop=0.875, resize="stretch"),
    "stretch, cropped": Preprocess(crop=0.875, resize="stretch", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)),
}


@pytest.mark.parametrize("name", OURS)
def test_ours_written_for_them_sees_the_same(tmp_path, name):
    preprocess = OURS[name]
    written = to_processor(preprocess, "here")
    assert from_processor(written, CONFIG, "here") == preprocess
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
    processor = hf.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    for shape in SHAPES:
        image = make_image(*shape)
        expected = processor(image, return_tensors="pt")["pixel_values"][0]
        torch.testing.assert_close(seen(image, preprocess), expected, atol=1e-6, rtol=0)


def test_timms_way_is_theirs_but_for_a_pixel():
    """torchvision rounds a centre between two pixels to the even one, `transformers` down. The sizes are the same."""
    for crop in (0.9, 0.95, 0.875, 1.0):
        preprocess = Preprocess(crop=crop)
        found = from_processor(to_processor(preprocess, "here"), CONFIG, "here")
        assert (found.resized, found.size, found.resize) == (preprocess.resized, (224, 224), "cover-floor")


def test_a_familys_default_is_what_its_folders_hold():
    folders = {"vit": "vit", "deit": "deit", "vit_mae": "mae", "dinov2": "dinov2", "dinov2_with_registers": "dinov2"}
    for kind, name in folders.items():
        expected = from_processor(PUBLISHED[name], CONFIG, "")
        assert from_processor(default_processor(kind, CONFIG), CONFIG, "") == expected, kind


def test_what_cannot_be_said_or_followed(tmp_path):
    with pytest.raises(UserError, match="100x200"):
        to_processor(Preprocess(size=(100, 200)), "here")
    wrong = (
        {"rescale_factor": 1.0},
        {"crop_size": 300, "do_center_crop": True},
        {"resample": 5},
        {"do_rescale": False},
        {"do_resize": False},
        {"crop_pct": 0.875},
        {"image_processor_type": "ConvNextImageProcessor"},
    )
    for said in wrong:
        from_processor({"size": 224, **HALF}, CONFIG, "here")
        with pytest.raises(UserError, match=r"here: preprocessor_config\.json .*\("):
            from_processor({"size": 224, **HALF, **said}, CONFIG, "here")
    with pytest.raises(UserError, match=r"do_normalize .*image_mean"):
        from_processor({"size": 224}, CONFIG, "here")


def test_a_familys_default_of_an_image_that_is_not_square():
    config = preset("B/16@224x160")
    for kind, resized in {"deit": (256, 183), "vit": (224, 160), "dinov2": (256, 183)}.items():
        found = from_processor(default_processor(kind, config), config, "here")
        assert (found.size, found.resized) == ((224, 160), resized), kind


def test_a_processor_by_its_older_name_keeps_the_short_side():
    """OpenAI's CLIP folders say feature_extractor_type, and a number as size is the short side there too."""
    numbers = {"size": 224, "crop_size": 224, "do_center_crop": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    older = from_processor({"feature_extractor_type": "CLIPFeatureExtractor", **numbers}, preset("S/16"), "x")
    newer = from_processor({"image_processor_type": "CLIPImageProcessor", **numbers}, preset("S/16"), "x")
    assert older == newer
    assert older.resize.startswith("cover")
