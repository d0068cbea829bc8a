"""The weights' figures: right numbers, for every kind of position."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from support.colours import make_bundle, make_images
from support.tiny_models import preprocess_for, random_model
from vitreous import UserError, plot_weights
from vitreous.data.augment import eval_view, normalise
from vitreous.data.decode import open_image
from vitreous.data.opening import open_images
from vitreous.explain.attention import attention_distance
from vitreous.explain.weight_statistics import (
    attention_distances,
    even_distance,
    filter_components,
    neighbour_similarity,
    position_similarity,
)
from vitreous.weights.bundle import Bundle, load_bundle


def test_filter_components_are_the_principal_ones():
    """By the eigenvectors of the covariance, which is another way to the same."""
    model = random_model()
    components, shares = filter_components(model, count=5)
    flat = model.patch_embed.proj.weight.detach().double().flatten(1).numpy()
    values, vectors = np.linalg.eigh(np.cov(flat.T))
    assert components.shape == (5, 4, 4, 3)
    np.testing.assert_allclose(shares, values[::-1][:5] / values.sum(), rtol=1e-4)
    for i in range(5):
        mine = components[i].transpose(2, 0, 1).ravel()
        assert abs(mine @ vectors[:, -1 - i]) == pytest.approx(1, abs=1e-4)
        assert mine[np.abs(mine).argmax()] > 0


@pytest.mark.parametrize("position", ["learned-1d", "learned-2d", "sincos-2d"])
def test_similarity_of_positions(position):
    model = random_model(position=position)
    alike = position_similarity(model)
    assert alike.shape == (3, 4, 3, 4)
    cells = model.cell_positions((3, 4)).detach().numpy()
    for i, a in enumerate(cells):
        for j, b in enumerate(cells):
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            assert alike[i // 4, i % 4, j // 4, j % 4] == pytest.approx(cosine, abs=1e-5)


def test_similarity_beside_and_elsewhere():
    alike = np.zeros((2, 2, 2, 2), np.float32)
    alike[0, 0, 0, 1] = alike[0, 1, 0, 0] = 1  # 2 of the 8 ordered pairs of neighbours
    assert neighbour_similarity(alike) == {"beside": 0.25, "elsewhere": 0.0}


@pytest.mark.parametrize("position", ["none", "relative"])
def test_positions_that_are_not_added_have_no_figure(position, tmp_path):
    model = random_model(position=position)
    found = plot_weights(Bundle(model, preprocess_for(model), ()), out=None)
    assert position_similarity(model) is None
    assert set(found.plots()) == {"filters"}
    assert found.to_json()["position_similarity"] is None


def test_distances_are_the_mean_over_images_that_can_be_read(tmp_path):
    make_images(tmp_path / "p", count=4)
    (tmp_path / "p" / "red" / "0.png").write_text("text")
    bundle = load_bundle(make_bundle(tmp_path / "b"))
    found = attention_distances(bundle, open_images(tmp_path / "p").train)
    paths = sorted(path for path in (tmp_path / "p").rglob("*.png") if path != tmp_path / "p" / "red" / "0.png")
    views = torch.stack([eval_view(open_image(path), bundle.preprocess) for path in paths])
    expected = attention_distance(bundle.model, normalise(views, bundle.preprocess)).mean(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert even_distance(bundle.model, (16, 16)) == pytest.approx((4 * 0 + 8 * 8 + 4 * 8 * 2**0.5) / 16)


def test_distances_need_no_classes_and_even_ones_are_of_the_grid_that_was_looked_at(tmp_path):
    make_images(tmp_path / "p", count=1)
    bundle = load_bundle(make_bundle(tmp_path / "b"))
    wide = replace(bundle, preprocess=replace(bundle.preprocess, size=(16, 32)))
    found = plot_weights(wide, data=tmp_path / "p" / "red", out=None).to_json()
    assert found["attention_distance"] is not None
    cells = [(row, column) for row in (0, 8) for column in (0, 8, 16, 24)]
    expected = np.mean([np.hypot(a - c, b - d) for a, b in cells for c, d in cells])
    assert found["even_distance"] == pytest.approx(expected, abs=0.01)


def test_the_figures_are_written(tmp_path):
    make_images(tmp_path / "p", count=1)
    files = plot_weights(make_bundle(tmp_path / "b"), data=tmp_path / "p", out=tmp_path / "out").files
    assert [file.name for file in files] == [
        f"{name}.{kind}" for name in ("filters", "positions", "distance") for kind in ("svg", "png")
    ]
    assert all(file.stat().st_size > 1000 for file in files)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file: "):
        plot_weights(tmp_path / "b", out=tmp_path / "file")
    with pytest.raises(UserError, match="count=0"):
        plot_weights(tmp_path / "b", data=tmp_path / "p", count=0)


@pytest.mark.slow
def test_real_heads_look_farther_with_depth_and_early_layers_have_both_kinds(shared_data):
    """What the paper found, in the real ViT-Ti/16."""
    from vitreous.weights.source import open_weights

    bundle = open_weights(shared_data / "vit_ti16_augreg_in21k_ft_in1k.safetensors", "mean=0.5,std=0.5,crop=0.9")
    found = attention_distances(bundle, open_images(shared_data / "pets" / "test").train, count=16)
    assert found.shape == (12, 3)
    mean = found.mean(axis=1)
    assert np.corrcoef(np.arange(12), mean)[0, 1] > 0.9
    assert mean[:3].max() < mean[-3:].min()
    early = found[:4]
    assert early.min() < 0.25 * even_distance(bundle.model, (224, 224)), "local"
    assert early.max() > 0.9 * even_distance(bundle.model, (224, 224)), "global"
