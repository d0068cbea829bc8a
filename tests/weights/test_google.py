"""Google's .npz, against the equations written over the file's own arrays with their own axes."""

import numpy as np
import pytest
import torch
from scipy.special import erf

from support.published import DEPTH, D, K, P, google, random_images
from support.tiny_models import random_model
from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.weights.google import write_google
from vitreous.weights.source import open_weights


def run(w, images):
    """The paper in NumPy with JAX's shapes: (inputs, outputs), (D, h, d)."""

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}/scale"] + w[f"{name}/bias"]

    def dense(x, name):
        return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]

    rows = []
    for image in images.astype(np.float64):
        cells = image.shape[1] // P
        tokens = [w["cls"][0, 0]]
        for r in range(cells):
            for c in range(cells):
                patch = image[:, r * P : (r + 1) * P, c * P : (c + 1) * P].transpose(1, 2, 0)  # HWC
                tokens.append(np.einsum("hwc,hwcd->d", patch, w["embedding/kernel"]) + w["embedding/bias"])
        z = np.stack(tokens) + w["Transformer/posembed_input/pos_embedding"][0]
        for i in range(DEPTH):
            b = f"Transformer/encoderblock_{i}"
            a = f"{b}/MultiHeadDotProductAttention_1"
            x = norm(z, f"{b}/LayerNorm_0")
            q, k, v = (
                np.einsum("td,dhe->hte", x, w[f"{a}/{n}/kernel"]) + w[f"{a}/{n}/bias"][:, None]
                for n in ("query", "key", "value")
            )
            scores = np.einsum("hqe,hke->hqk", q, k) / np.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            read = np.einsum("hqk,hke->qhe", weights / weights.sum(-1, keepdims=True), v)
            z = z + np.einsum("qhe,hed->qd", read, w[f"{a}/out/kernel"]) + w[f"{a}/out/bias"]
            x = dense(norm(z, f"{b}/LayerNorm_2"), f"{b}/MlpBlock_3/Dense_0")
            z = z + dense(x * 0.5 * (1 + erf(x / np.sqrt(2))), f"{b}/MlpBlock_3/Dense_1")
        y = norm(z, "Transformer/encoder_norm")[0]
        if "pre_logits/kernel" in w:
            y = np.tanh(dense(y, "pre_logits"))
        rows.append(dense(y, "head"))
    return np.stack(rows)


@pytest.mark.parametrize("representation", [False, True])
@pytest.mark.parametrize("prefix", ["", "opt/target/"])
def test_a_published_file(tmp_path, representation, prefix):
    w = google(representation=representation)
    np.savez(tmp_path / "ViT.npz", **{prefix + name: array for name, array in w.items()})
    bundle = open_weights(tmp_path / "ViT.npz")
    assert bundle.notes[0].endswith(f"Google ViT(128 wide, 2 deep)/8, 32, {K} classes")
    assert "Google: mean=0.5,std=0.5,crop=0.9" in bundle.notes[1]
    images = random_images()
    with torch.inference_mode():
        found = bundle.model(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(found, run(w, images), atol=1e-5)

    write_google(tmp_path / "again.npz", bundle.model, bundle.preprocess, bundle.labels, bundle.info)
    with np.load(tmp_path / "again.npz", allow_pickle=False) as again:
        assert set(again.files) == set(w)
        for name, array in w.items():
            assert again[name].dtype == array.dtype
            assert again[name].tobytes() == array.tobytes(), name


def test_our_own_model_there_and_back(tmp_path):
    model = random_model(image_size=(16, 16), classifier="mlp")
    place = write_google(tmp_path / "deep" / "m.npz", model, Preprocess(size=(16, 16)), tuple("abcde"), {})
    found = open_weights(place).model
    assert found.config == model.config, "even heads are told, by their axis"
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in found.state_dict().items())
    assert [path.name for path in place.parent.iterdir()] == ["m.npz"]


def test_a_grid_that_is_not_square_is_told_by_the_size(tmp_path):
    model = random_model(image_size=(8, 20))
    place = write_google(tmp_path / "m.npz", model, Preprocess(size=(8, 20)), tuple("abcde"), {})
    with pytest.raises(UserError, match=r"11 .*size=224x160"):
        open_weights(place)
    assert open_weights(place, "size=8x20").model.config == model.config


# What the sentence names, and what it refuses.
REFUSED = {
    "registers": {"registers": 2},
    "swiglu": {"mlp": "swiglu"},
    "LayerScale": {"layer_scale": 1.0},
    "'mean'": {"pool": "mean"},
    "1e-05": {"norm_eps": 1e-5},
    "sincos-2d": {"position": "sincos-2d"},
}


def test_what_it_has_no_word_for_is_refused(subtests, tmp_path):
    for name, changes in REFUSED.items():
        with subtests.test(name), pytest.raises(UserError, match=name):
            write_google(tmp_path / "m.npz", random_model(**changes), Preprocess(size=(12, 16)), (), {})
    with pytest.raises(UserError, match=r"\.npz"):
        write_google(tmp_path / "m", random_model(), Preprocess(size=(12, 16)), (), {})
    assert not list(tmp_path.iterdir())


def test_an_error_speaks_in_the_files_own_names(tmp_path):
    w = google()
    w["Transformer/encoderblock_1/MultiHeadDotProductAttention_1/key/bias"] = np.zeros((2, 32), np.float32)
    del w["Transformer/encoder_norm/scale"]
    np.savez(tmp_path / "ViT.npz", **w, **{"extra.1": np.zeros(3)})
    with pytest.raises(UserError) as caught:
        open_weights(tmp_path / "ViT.npz")
    for name in (
        "Transformer/encoder_norm/scale ",
        "extra.1 ",
        "MultiHeadDotProductAttention_1/key/bias ",
        "(2, 32)",
        f"(2, {D // 2})",
    ):
        assert name in str(caught.value)
