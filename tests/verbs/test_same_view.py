"""Every verb shows the model the same pixels of an image: those of `predict`, to the bit."""

import numpy as np
import pytest
import torch
from PIL import Image

from support.colours import make_bundle
from vitreous import Model, load, plot_weights, score_explanations, write_walkthrough
from vitreous.data.opening import open_data
from vitreous.inference.engine import open_in_torch
from vitreous.inference.probing import FeatureReader
from vitreous.training.page import write_report
from vitreous.verbs.evaluate import evaluate
from vitreous.verbs.explain import explain
from vitreous.verbs.predict import predict


@pytest.fixture
def photographs(tmp_path):
    """Two large photographs, the second stored lying; a decoder makes them smaller than their size."""
    rng = np.random.default_rng(0)
    for orientation, name in ((1, "blue"), (6, "red")):
        exif = Image.Exif()
        exif[0x0112] = orientation
        (tmp_path / "p" / name).mkdir(parents=True)
        image = Image.fromarray(rng.integers(0, 256, (400, 600, 3), dtype=np.uint8))
        image.save(tmp_path / "p" / name / "0.jpg", exif=exif)
    return tmp_path / "p"


def ask_probe(bundle, folder):
    FeatureReader(open_in_torch(bundle), workers=0).labelled(open_data(folder).train)


def ask_explain_bytes(bundle, folder):
    for path in sorted(folder.rglob("*.jpg")):
        Model(bundle).explain(path.read_bytes(), method="attention")


VERBS = {
    "evaluate": evaluate,
    "probe": ask_probe,
    "explain": lambda bundle, folder: list(explain(bundle, folder, method="attention", out=None)),
    "explain, bytes": ask_explain_bytes,
    "score-explanations": lambda bundle, folder: score_explanations(bundle, folder, methods=["attention"]),
    "plot-weights": lambda bundle, folder: plot_weights(bundle, data=folder, out=None),
    "walkthrough": lambda bundle, folder: write_walkthrough(bundle, folder, out=folder.parent / "pages"),
    "report": lambda bundle, folder: write_report(bundle, data=folder, out=folder.parent / "report.html"),
}


def test_every_verb_sees_what_predict_sees(photographs, tmp_path, monkeypatch, subtests):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    bundle = load(make_bundle(tmp_path / "b")).bundle
    seen: list[torch.Tensor] = []
    bundle.model.patch_embed.register_forward_pre_hook(lambda _, patches: seen.append(patches[0].detach().clone()))
    predict(bundle, photographs)
    expected = set(map(digest, torch.cat(seen)))
    assert len(expected) == 2
    for name, ask in VERBS.items():
        with subtests.test(name):
            seen.clear()
            ask(bundle, photographs)
            assert set(map(digest, torch.cat([patches for patches in seen if patches.shape[1] == 4]))) == expected


def digest(patches: torch.Tensor) -> bytes:
    return patches.numpy().tobytes()
