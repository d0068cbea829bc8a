"""Relevance and Grad-CAM against NumPy: their formulas, with gradients by finite differences."""

import weakref

import numpy as np
import pytest
import torch

from support.numpy_vit import NumpyViT, softmax
from support.tiny_models import random_images, random_model
from vitreous.explain import relevance
from vitreous.explain.relevance import gradcam_maps, relevance_maps
from vitreous.model import neighbourhood

VARIANTS = {
    "class token": {},
    "registers": {"registers": 1},
    "mean": {"pool": "mean", "class_token": False},
    "tanh classifier": {"classifier": "mlp"},
    "attention pooling": {"pool": "attention"},
    "no bias of place": {"position": "none"},
    "neighbourhood": {"attention": "neighbourhood", "window": 1},
    "axial": {"attention": "axial", "pool": "mean"},
}
SMALL = {"image_size": (8, 8), "heads": 2, "width": 8, "mlp_width": 8}


class Disturbed(NumpyViT):
    """Adds a little to one number: of an attention (layer, head, query, key), or of a token (layer, token, channel)."""

    attention_change = token_change = pool_change = None

    def msa(self, z, name, keep):
        c, d, layer = self.c, self.c.width // self.c.heads, int(name.split(".")[1])
        qkv = self.dense(z, f"{name}.qkv")
        heads, maps = [], []
        for h in range(c.heads):
            q, k, v = (qkv[:, part * c.width + h * d : part * c.width + (h + 1) * d] for part in range(3))
            A = softmax(np.where(self.seen(name, keep), q @ k.T / np.sqrt(d), -np.inf))
            maps.append(A.copy())
            if self.attention_change is not None and self.attention_change[0][:2] == (layer, h):
                A[self.attention_change[0][2:]] += self.attention_change[1]
            heads.append(A @ v)
        self.attention.append(np.stack(maps))
        return self.dense(np.concatenate(heads, axis=1), f"{name}.proj")

    def block(self, z, name, keep):
        z = super().block(z, name, keep)
        if self.token_change is not None and self.token_change[0][0] == int(name.split(".")[1]):
            z[self.token_change[0][1:]] += self.token_change[1]
        return z

    def pool(self, z):
        if self.c.pool != "attention":
            return super().pool(z)
        c, d = self.c, self.c.width // self.c.heads
        patches = z[self.prefix :]
        q = self.dense(self.w["attn_pool.latent"][0, 0], "attn_pool.q")
        kv = self.dense(patches, "attn_pool.kv")
        self.pooled, out = [], []
        for h in range(c.heads):
            k, v = kv[:, h * d : (h + 1) * d], kv[:, c.width + h * d : c.width + (h + 1) * d]
            A = softmax(k @ q[h * d : (h + 1) * d] / np.sqrt(d))
            self.pooled.append(A.copy())
            if self.pool_change is not None and self.pool_change[0][0] == h:
                A[self.pool_change[0][1]] += self.pool_change[1]
            out.append(A @ v)
        y = self.dense(np.concatenate(out), "attn_pool.proj")
        return y + self.mlp(self.norm(y, "attn_pool.norm"), "attn_pool.mlp")


def log_odds(scores, target):
    p = softmax(scores)[target]
    return np.log(p / (1 - p))


def slope(vit, image, target, change, where):
    """Central difference of the evidence with respect to one number."""
    ends = []
    for sign in (1, -1):
        setattr(vit, change, (where, sign * 1e-5))
        ends.append(log_odds(vit.image(image, None), target))
    setattr(vit, change, None)
    return (ends[0] - ends[1]) / 2e-5


def relevance_by_the_paper(vit, image, target, first):
    """R = I; then R = R + mean over heads of max(0, G * A) times R for each layer; the row that is read."""
    c = vit.c
    vit.image(image, None)
    attention = np.stack(vit.attention)
    T = attention.shape[-1]
    R = np.eye(T)
    for layer in range(first, c.depth):
        mixed = np.zeros((T, T))
        for h, i, j in np.ndindex(c.heads, T, T):
            gradient = slope(vit, image, target, "attention_change", (layer, h, i, j))
            mixed[i, j] += max(0, gradient * attention[layer, h, i, j]) / c.heads
        R = R + mixed @ R
    if c.pool == "class":
        return R[0, c.prefix :]
    if c.pool == "mean":
        return R[c.prefix :, c.prefix :].mean(0) - 1 / (T - c.prefix)
    pooled = np.array(vit.pooled)
    read = [
        sum(max(0, slope(vit, image, target, "pool_change", (h, j)) * pooled[h, j]) for h in range(c.heads)) / c.heads
        for j in range(T - c.prefix)
    ]
    return np.array(read) @ R[c.prefix :, c.prefix :]


def test_relevance(subtests):
    for first in [0, 1]:
        for name, changes in VARIANTS.items():
            with subtests.test(first=first, name=name):
                model = random_model(**SMALL, **changes)
                images = random_images(model)
                targets = torch.tensor([3, 0])
                found, scores = relevance_maps(model, images, targets, layers=[first])
                torch.testing.assert_close(scores, model(images))
                vit = Disturbed(model.config, model.state_dict())
                for b, image in enumerate(images.double().numpy()):
                    expected = relevance_by_the_paper(vit, image, int(targets[b]), first)
                    np.testing.assert_allclose(found[first][b, 0].flatten(), expected, atol=2e-5, rtol=1e-3)


def test_all_layers_in_one_pass_are_those_of_single_passes():
    model = random_model(depth=4)
    images = random_images(model)
    together, _ = relevance_maps(model, images, None, layers=range(4))
    for layer in range(4):
        alone, _ = relevance_maps(model, images, None, layers=[layer])
        torch.testing.assert_close(together[layer], alone[layer])


def test_gradcam(subtests):
    """For each patch that enters the second layer, max(0, sum over channels of gradient * token), by differences."""
    for changes in [{}, {"registers": 1}, {"pool": "mean", "class_token": False}]:
        with subtests.test(changes=changes):
            model = random_model(**SMALL, **changes)
            images = random_images(model)
            targets = torch.tensor([1, 4])
            found, scores = gradcam_maps(model, images, targets, layers=[1])
            both, _ = gradcam_maps(model, images, targets, layers=[0, 1])
            torch.testing.assert_close(both[1], found[1])
            torch.testing.assert_close(scores, model(images))
            vit = Disturbed(model.config, model.state_dict())
            prefix = model.config.prefix
            for b, image in enumerate(images.double().numpy()):
                vit.image(image, None)
                tokens = vit.tokens[0].copy()
                for patch in range(4):
                    total = sum(
                        slope(vit, image, int(targets[b]), "token_change", (0, prefix + patch, channel))
                        * tokens[prefix + patch, channel]
                        for channel in range(model.config.width)
                    )
                    assert float(found[1][b, 0].flatten()[patch]) == pytest.approx(max(0, total), abs=2e-5, rel=1e-3)


def test_frozen_weights_and_a_caller_without_gradients_change_nothing():
    model = random_model()
    images = random_images(model)
    expected, _ = relevance_maps(model, images, None, layers=[1])
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with torch.no_grad():
        for layers in ([1], [0, 1]):
            found, _ = relevance_maps(model, images, None, layers=layers)
            torch.testing.assert_close(found[1], expected[1])
            found, _ = gradcam_maps(model, images, torch.tensor([1, 2]), layers=layers)
            assert found[1].max() > 0
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        inside, targets = images.clone(), torch.tensor([1, 2])
        for layers in ([1], [0, 1]):
            found, _ = relevance_maps(model, inside, None, layers=layers)
            torch.testing.assert_close(found[1], expected[1])
            found, _ = relevance_maps(model, inside, targets, layers=layers)
            camera, _ = gradcam_maps(model, inside, targets, layers=layers)
        assert torch.is_inference_mode_enabled()
    torch.testing.assert_close(camera[1], gradcam_maps(model, images, targets.clone(), layers=[1])[0][1])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_layers_below_the_first_stay_fused(monkeypatch):
    explicit, original = [], neighbourhood.attend

    def watched(*args, **options):
        explicit.append(args[4])
        return original(*args, **options)

    monkeypatch.setattr(neighbourhood, "attend", watched)
    model = random_model(depth=4)
    relevance_maps(model, random_images(model), None, layers=[2])
    assert explicit == [False, False, True, True]


@pytest.mark.parametrize("changes", [{}, {"pool": "attention"}], ids=str)
def test_nothing_of_a_call_stays_in_memory(monkeypatch, changes):
    """Hooks in a graph that their owner holds would keep both for ever."""
    made = []

    class Watched(relevance._Relevance):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(weakref.ref(self))

    monkeypatch.setattr(relevance, "_Relevance", Watched)
    model = random_model(**changes)
    kept = relevance_maps(model, random_images(model), None, layers=[0])
    assert kept
    assert [one() for one in made] == [None]


def test_log_odds_keep_their_slope_where_the_model_is_confident():
    scores = torch.tensor([[1.0, 2.0, 0.5]])
    p = scores.softmax(1)[0, 1]
    assert relevance.log_odds(scores, torch.tensor([1])).item() == pytest.approx(
        torch.log(p / (1 - p)).item(), rel=1e-5
    )
    sure = torch.tensor([[50.0, 0.0, 0.0]], requires_grad=True)
    relevance.log_odds(sure, torch.tensor([0])).sum().backward()
    torch.testing.assert_close(sure.grad, torch.tensor([[1.0, -0.5, -0.5]]))
