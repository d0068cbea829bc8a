"""Raw attention, rollout and attention distance against the paper's formulas in NumPy."""

import weakref

import numpy as np
import pytest
import torch

from support.known_model import bright_model
from support.numpy_vit import NumpyViT, softmax
from support.tiny_models import random_images, random_model
from vitreous.data.augment import normalise
from vitreous.data.view import make_view
from vitreous.explain.attention import (
    attention_distance,
    attention_maps,
    attention_sinks,
    find_sinks,
    mean_distance,
    pool_maps,
    rollout_maps,
)
from vitreous.explain.explanation import Explainer
from vitreous.explain.request import ExplanationRequest
from vitreous.inference.opening import open_model
from vitreous.model import neighbourhood
from vitreous.model.network import evaluating
from vitreous.model.trace import Trace

VARIANTS = {
    "class token": {},
    "registers": {"registers": 3},
    "mean without class token": {"pool": "mean", "class_token": False},
    "mean with registers": {"pool": "mean", "registers": 2},
    "relative": {"position": "relative"},
    "neighbourhood": {"attention": "neighbourhood", "window": 3},
    "axial": {"attention": "axial", "pool": "mean"},
}


def truth(model, images):
    """Each image's attention (layers, heads, T, T), in NumPy."""
    numpy_vit = NumpyViT(model.config, model.state_dict())
    found = []
    for image in images.double().numpy():
        numpy_vit.image(image, None)
        found.append(np.stack(numpy_vit.attention))
    return np.stack(found)


def read_from(attention, config):
    """The row of what the answer is read from: the class token's, or the mean of the patches'."""
    rows = attention[..., 0, :] if config.pool == "class" else attention[..., config.prefix :, :].mean(-2)
    return rows[..., config.prefix :].reshape(*rows.shape[:-1], *config.grid)


def test_attention_of_every_layer_and_head(subtests):
    for name, changes in VARIANTS.items():
        with subtests.test(name):
            model = random_model(**changes)
            images = random_images(model)
            found, scores = attention_maps(model, images, layers=None)
            expected = read_from(truth(model, images), model.config)
            assert sorted(found) == [0, 1]
            for layer in (0, 1):
                np.testing.assert_allclose(found[layer], expected[:, layer], atol=1e-6)
            torch.testing.assert_close(scores, model(images))


def test_attention_of_a_query_patch():
    model = random_model(registers=3)
    images = random_images(model)
    found, _ = attention_maps(model, images, layers=[-1], query=5)
    expected = truth(model, images)[:, 1, :, 4 + 5, 4:].reshape(2, 4, 3, 4)
    np.testing.assert_allclose(found[1], expected, atol=1e-6)


def test_attention_of_two_class_tokens_is_their_mean():
    model = random_model(distilled=True)
    images = random_images(model)
    whole = vitreous_attention(model, images)
    found, _ = attention_maps(model, images)
    torch.testing.assert_close(found[1].flatten(2), whole[1][:, :, :2, 2:].mean(dim=2))


def vitreous_attention(model, images):
    trace = Trace()
    with torch.no_grad():
        model(images, trace=trace)
    return trace.attention


def test_rollout(subtests):
    """Abnar and Zuidema: A~ = (mean over heads + I) / 2, and the product of all layers so far."""
    for name, changes in VARIANTS.items():
        with subtests.test(name):
            model = random_model(**changes)
            images = random_images(model)
            found, _ = rollout_maps(model, images, layers=None)
            for b, attention in enumerate(truth(model, images)):
                product = np.eye(attention.shape[-1])
                for layer in range(model.config.depth):
                    product = (0.5 * attention[layer].mean(0) + 0.5 * np.eye(len(product))) @ product
                    np.testing.assert_allclose(found[layer][b, 0], read_from(product, model.config), atol=1e-6)


def test_rollout_is_computed_where_the_model_is():
    """On any other device than the processor: meta tensors compute nothing, but refuse to be mixed with others."""
    model = random_model()
    images = random_images(model)
    found, _ = rollout_maps(model.to("meta"), images.to("meta"), layers=None)
    assert [one.device.type for one in found.values()] == ["meta"] * model.config.depth


def test_rollout_of_class_tokens(subtests):
    """Of what stands beside the mean the class token's row; of two class tokens the mean of their rows."""
    for changes in [{"pool": "class+mean", "registers": 1}, {"distilled": True}]:
        with subtests.test(changes=changes):
            model = random_model(**changes)
            images = random_images(model)
            found, _ = rollout_maps(model, images)
            for b, attention in enumerate(truth(model, images)):
                read = rolled(attention)[: 1 + model.config.distilled, model.config.prefix :].mean(0)
                np.testing.assert_allclose(found[1][b, 0].flatten(), read, atol=1e-6)


def test_rollout_ends_in_the_pooling(subtests):
    """What the learned query reads, by what those patches were made of."""
    for changes in [{"registers": 1}, {"class_token": False}]:
        with subtests.test(changes=changes):
            model = random_model(pool="attention", **changes)
            images = random_images(model)
            found, _ = rollout_maps(model, images)
            asked, _ = rollout_maps(model, images, query=3)
            prefix = model.config.prefix
            for b, (attention, pooled) in enumerate(zip(truth(model, images), pool_truth(model, images), strict=True)):
                patches = rolled(attention)[prefix:, prefix:]
                np.testing.assert_allclose(found[1][b, 0].flatten(), pooled.mean(0) @ patches, atol=1e-6)
                np.testing.assert_allclose(asked[1][b, 0].flatten(), patches[3], atol=1e-6)


def rolled(attention):
    """The whole product of an image's layers (layers, heads, T, T)."""
    product = np.eye(attention.shape[-1])
    for layer in attention:
        product = (0.5 * layer.mean(0) + 0.5 * np.eye(len(product))) @ product
    return product


def pool_truth(model, images):
    """(B, heads, N): softmax of the learned query's scores, in NumPy."""
    vit = NumpyViT(model.config, model.state_dict())
    heads, d = model.config.heads, model.config.width // model.config.heads
    found = []
    for image in images.double().numpy():
        vit.image(image, None)
        patches = vit.norm(vit.tokens[-1], "norm")[vit.prefix :]
        q = vit.dense(vit.w["attn_pool.latent"][0, 0], "attn_pool.q")
        k = vit.dense(patches, "attn_pool.kv")
        parts = [slice(h * d, (h + 1) * d) for h in range(heads)]
        found.append([softmax(k[:, part] @ q[part] / np.sqrt(d)) for part in parts])
    return np.array(found)


def test_pooling_by_attention_shows_what_its_query_reads():
    model = random_model(pool="attention", registers=1)
    images = random_images(model)
    found, _ = pool_maps(model, images)
    np.testing.assert_allclose(found.flatten(2), pool_truth(model, images), atol=1e-6)


def test_distance(subtests):
    """Loops over queries and keys, as the text says it."""
    for changes in [
        *({}, {"registers": 2}, {"pool": "mean", "class_token": False}),
        *({"attention": "neighbourhood", "window": 3}, {"attention": "axial", "registers": 1}),
    ]:
        with subtests.test(changes=changes):
            model = random_model(**changes)
            images = random_images(model)
            found = attention_distance(model, images)
            c = model.config
            cells = [(row * c.patch, column * c.patch) for row in range(c.grid[0]) for column in range(c.grid[1])]
            for b, attention in enumerate(truth(model, images)):
                for layer in range(c.depth):
                    for head in range(c.heads):
                        among = attention[layer, head, c.prefix :, c.prefix :]
                        total = 0.0
                        for i, query in enumerate(cells):
                            for j, key in enumerate(cells):
                                away = np.hypot(query[0] - key[0], query[1] - key[1])
                                total += among[i, j] / among[i].sum() * away
                        assert found[b, layer, head] == pytest.approx(total / len(cells), rel=1e-5)


def test_a_model_that_looks_at_what_is_bright(subtests):
    for size in [(16, 16), (12, 24), (24, 12)]:
        for changes in [{}, {"registers": 3}, {"class_token": False, "pool": "mean"}, {"registers": 2, "pool": "mean"}]:
            with subtests.test(size=size, changes=changes):
                model = bright_model(size, **changes)
                images = torch.full((1, 3, *size), -0.5)
                images[:, :, 4:8, 8:12] = 0.5
                images[:, :, 8:12, 0:4] = 0.5
                expected = torch.zeros(size[0] // 4, size[1] // 4)
                expected[1, 2] = expected[2, 0] = 0.5
                found, _ = attention_maps(model, images)
                torch.testing.assert_close(found[0][0, 0], expected)
                torch.testing.assert_close(found[0][0, 1], expected)


@pytest.mark.parametrize("maps", [attention_maps, rollout_maps])
def test_all_layers_hold_one_layers_attention_at_a_time(monkeypatch, maps):
    """When a layer makes its attention, that of every layer before is gone."""
    made, alive = [], []
    original = neighbourhood.attend

    def watched(*args, **options):
        out, attention = original(*args, **options)
        alive.append(sum(ref() is not None for ref in made))
        made.append(weakref.ref(attention))
        return out, attention

    monkeypatch.setattr(neighbourhood, "attend", watched)
    model = random_model(depth=6)
    found, _ = maps(model, random_images(model), layers=None)
    assert len(found) == len(made) == 6
    assert alive == [0] * 6


def test_a_patch_that_attends_to_no_patch_has_no_distance():
    """Every patch looks at the register, whose key fits by far best: there is no place that it looks at."""
    model = bright_model((8, 8), registers=1)
    with torch.no_grad():
        model.reg_token[:, :, 0] = 1000.0
        model.reg_token[:, :, 1] = -1000.0
        model.reg_token[:, :, 4] = 1000.0
        model.reg_token[:, :, 5] = -1000.0
    images = torch.full((1, 3, 8, 8), -0.5)
    found = attention_distance(model, images)
    assert np.isfinite(found).all()
    assert (found == 0).all()


def test_queries_that_look_at_no_patch_are_left_out_of_the_mean():
    """Of three queries, one looks 4 pixels far, one half at 4 and half at 8, and one nowhere."""
    among = torch.tensor([[[[0.0, 1, 0], [0, 0, 0], [0.5, 0.5, 0]]]])
    between = torch.tensor([[0.0, 4, 8], [4, 0, 4], [8, 4, 0]])
    assert mean_distance(among, between).tolist() == [[(4 + 6) / 2]]


def test_a_sink_gets_much_attention_from_nearly_all_tokens():
    """By hand: of 20 patches, patch 3 gets most of every query and head, patch 7 most of a single head's."""
    attention = torch.full((1, 4, 21, 21), 0.01)
    attention[:, :, :, 1 + 3] = 0.5
    attention[:, 0, :, 1 + 7] = 0.9
    assert attention_sinks(attention, 1)[0].nonzero()[:, 0].tolist() == [3]
    assert not attention_sinks(torch.rand(2, 4, 21, 21), 1).any()
    one_query = torch.full((1, 4, 21, 21), 0.01)
    one_query[:, :, 5, 1 + 3] = 0.8  # only one token attends to it
    assert not attention_sinks(one_query, 1).any()


def test_the_published_model_has_sinks_in_its_late_layers(shared_data):
    """Darcet et al. and docs/analysis.md: from layer 8 on, four tokens of a ViT-Ti/16 are outliers."""
    bundle = open_model(shared_data / "vit_ti16_augreg_in21k_ft_in1k.safetensors", None)
    image = sorted((shared_data / "pets" / "test" / "Bombay").iterdir())[3]
    view = normalise(make_view(image, bundle.preprocess)[None], bundle.preprocess)
    with evaluating(bundle.model):
        found = {layer: int(find_sinks(bundle.model, view, [layer]).sum()) for layer in range(12)}
    assert all(found[layer] == 0 for layer in range(7))
    assert all(found[layer] in (3, 4) for layer in (9, 10, 11))
    explainer = Explainer(bundle, ExplanationRequest(method="attention", layer=-1))
    assert len(explainer.explain(image).sinks) == found[11]
