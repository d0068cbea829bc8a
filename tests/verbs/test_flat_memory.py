"""Memory hardly grows with the number of images, for every verb that reads data."""

import numpy as np
import pytest
from PIL import Image

from support.commands import MB, check_ended_well
from vitreous import ViT, ViTConfig
from vitreous.config.data import Preprocess
from vitreous.weights.bundle import save_bundle

pytestmark = pytest.mark.slow

FEW, MANY = 200, 800
MORE = 12 * MB
"""20 kB for each further image, whose pixels and name take 1 kB; results that pinned the heap took 100 kB."""
VERBS = {
    "evaluate": "evaluate MODEL DATA",
    "predict": "predict MODEL IMAGES",
    "analyze": "analyze MODEL --data DATA --out out --count HALF",
    "probe": "probe MODEL DATA",
    "fit": "fit DATA --weights MODEL --epochs 0.05 --workers 0 --out run",
    "inspect": "inspect DATA",
    "analyze, bias": "analyze MODEL --data DATA --out out --count HALF --what bias",
    "score-explanations": "score-explanations MODEL DATA --methods attention --count HALF",
}
ALWAYS = ("evaluate", "predict", "analyze")
"""One reader of packed images, one of files, and one that keeps numbers of every image; the others are exhaustive."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """64 tokens of 256 numbers between two layers of an MLP: activations of 64 kB an image, features of 32 numbers."""
    made = ViT(ViTConfig(width=32, depth=1, heads=2, mlp_width=256, patch=2, image_size=(16, 16), classes=2))
    return save_bundle(tmp_path_factory.mktemp("model") / "b", made.eval(), Preprocess(size=(16, 16)), ["0", "1"])


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """{count: (an .npz, a folder with the same images as files)}."""
    root, found = tmp_path_factory.mktemp("data"), {}
    for count in (FEW, MANY):
        pixels = np.random.default_rng(0).integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
        np.savez(root / f"{count}.npz", images=pixels, labels=np.arange(count) % 2)
        (root / f"{count}").mkdir()
        for k, one in enumerate(pixels):
            Image.fromarray(one).save(root / f"{count}" / f"{k}.bmp")
        found[count] = root / f"{count}.npz", root / f"{count}"
    return found


@pytest.mark.parametrize(
    "verb", [verb if verb in ALWAYS else pytest.param(verb, marks=pytest.mark.exhaustive) for verb in VERBS]
)
def test_memory_stays_flat(processes, model, places, tmp_path, verb):
    peaks = {}
    for count, (packed, folder) in places.items():
        words = {"MODEL": model, "DATA": packed, "IMAGES": folder, "HALF": count // 2}
        place = tmp_path / str(count)
        place.mkdir()
        cache = {"VITREOUS_CACHE": str(place / "cache")}
        outcome = processes(*(words.get(word, word) for word in VERBS[verb].split()), cwd=place, env=cache, limit=300)
        check_ended_well(outcome, seconds=120, memory=1000 * MB)
        assert outcome.status == 0, outcome.stderr
        peaks[count] = outcome.peak
    assert peaks[MANY] - peaks[FEW] < MORE, {count: round(peak / MB) for count, peak in peaks.items()}


def test_ten_thousand_classes_of_two_images(processes, tmp_path):
    """Logits are 400 MB; whatever else is made of them comes and goes by parts, and files have no n x K, no K x K."""
    pixels = np.random.default_rng(0).integers(0, 256, (10_000, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(10_000)
    np.savez(tmp_path / "many.npz", x_train=pixels, y_train=labels, x_val=pixels, y_val=labels)
    model = "depth=1 heads=2 width=16 mlp_width=16"
    words = [
        "fit",
        "many.npz",
        "--epochs",
        "0.05",
        "--workers",
        "0",
        "--out",
        "run",
        "--recipe",
        "plain",
        "--model",
        "F/4@8",
    ]
    words += [word for pair in model.split() for word in ("--overrides", f"model.{pair}")]
    outcome = processes(*words, cwd=tmp_path, limit=300)
    check_ended_well(outcome, seconds=60, memory=2000 * MB)
    assert outcome.status == 0, outcome.stderr
    assert sum(path.stat().st_size for path in (tmp_path / "run").glob("*.*")) < 20 * MB
