"""Memory stays flat in pictures, for every verb that goes through data: many more of them take hardly any more."""

import numpy as np
import pytest
from PIL import Image

from support.commands import MB, check_ended_well
from vitreous import ViT, ViTConfig
from vitreous.config.data import Preprocess
from vitreous.weights.bundle import save_bundle

pytestmark = pytest.mark.slow

FEW, MANY = 400, 2400
MORE = 24 * MB
"""12 kB for each more picture, of which its pixels and name take 1: results that pinned the heap took 100."""
VERBS = {
    "evaluate": ("evaluate", "MODEL", "DATA"),
    "probe": ("probe", "MODEL", "DATA"),
    "fit": ("fit", "DATA", "--weights", "MODEL", "--epochs", 0.05, "--workers", 0, "--out", "run"),
    "inspect": ("inspect", "DATA"),
    "predict": ("predict", "MODEL", "PICTURES"),
    "analyze": ("analyze", "MODEL", "--data", "DATA", "--out", "out", "--pictures", "HALF"),
    "analyze, bias": ("analyze", "MODEL", "--data", "DATA", "--out", "out", "--pictures", "HALF", "--what", "bias"),
    "score-explanations": ("score-explanations", "MODEL", "DATA", "--method", "attention", "--count", "HALF"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """64 tokens of 256 numbers between two layers of an MLP: activations of 64 kB a picture, features of 32 numbers."""
    made = ViT(ViTConfig(width=32, depth=1, heads=2, mlp_width=256, patch=2, image_size=(16, 16), classes=2))
    return save_bundle(tmp_path_factory.mktemp("model") / "b", made.eval(), Preprocess(size=(16, 16)), ["0", "1"])


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """{count: (an .npz, a folder with the same pictures as files)}."""
    root, found = tmp_path_factory.mktemp("data"), {}
    for count in (FEW, MANY):
        pixels = np.random.default_rng(0).integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
        np.savez(root / f"{count}.npz", images=pixels, labels=np.arange(count) % 2)
        (root / f"{count}").mkdir()
        for k, one in enumerate(pixels):
            Image.fromarray(one).save(root / f"{count}" / f"{k}.bmp")
        found[count] = root / f"{count}.npz", root / f"{count}"
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_memory_stays_flat(processes, model, places, tmp_path, verb):
    peaks = {}
    for count, (packed, folder) in places.items():
        words = {"MODEL": model, "DATA": packed, "PICTURES": folder, "HALF": count // 2}
        place = tmp_path / str(count)
        place.mkdir()
        cache = {"VITREOUS_CACHE": str(place / "cache")}
        outcome = processes(*(words.get(word, word) for word in VERBS[verb]), cwd=place, env=cache, limit=300)
        check_ended_well(outcome, seconds=120, memory=1000 * MB)
        assert outcome.status == 0, outcome.stderr
        peaks[count] = outcome.peak
    assert peaks[MANY] - peaks[FEW] < MORE, {count: round(peak / MB) for count, peak in peaks.items()}
