"""The measures of attention and of representations, against NumPy transcriptions and cases known by hand."""

import math
import weakref

import numpy as np
import pytest
import torch

from vitreous import Trace, ViT, ViTConfig
from vitreous.explain.analysis.depths import Survey, _Reading, best_depth, pool_depths
from vitreous.explain.analysis.measures import (
    BANDS,
    band_noise,
    depth_similarity,
    diagonal,
    effective_rank,
    head_similarity,
    linear_cka,
    log_amplitude,
    log_spectrum,
    mean_cosine,
    mutual_information,
    patch_attention,
    query_similarity,
    singular_values,
)
from vitreous.explain.attention import attention_distance


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_attention(*shape, seed=0):
    return (2 * draw(*shape, seed=seed)).softmax(dim=-1)


def cosine(a, b):
    return float(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


# Attention


def test_attention_among_patches(subtests):
    for prefix in [0, 1, 3]:
        with subtests.test(prefix=prefix):
            attention = random_attention(2, 3, 7, 7)
            found = patch_attention(attention, prefix).numpy()
            inner = attention.numpy()[:, :, prefix:, prefix:]
            np.testing.assert_allclose(found, inner / inner.sum(-1, keepdims=True), rtol=1e-5)


def test_a_patch_that_looks_at_the_class_token_only():
    attention = torch.zeros(1, 1, 3, 3)
    attention[..., 0] = 1
    assert torch.isfinite(mutual_information(patch_attention(attention, 1))).all()


def test_mutual_information_by_its_definition():
    attention = random_attention(2, 3, 6, 6)
    found = mutual_information(attention)
    for b in range(2):
        for h in range(3):
            conditional = attention[b, h].double().numpy()
            n = len(conditional)
            p_q = np.full(n, 1 / n)
            joint = conditional * p_q[:, None]
            p_k = joint.sum(0)
            information = (joint * np.log(joint / np.outer(p_q, p_k))).sum()
            entropy_q, entropy_k = -(p_q * np.log(p_q)).sum(), -(p_k * np.log(p_k)).sum()
            assert found[b, h].item() == pytest.approx(information / np.sqrt(entropy_q * entropy_k), abs=1e-5)


def test_mutual_information_of_known_attention():
    n = 9
    uniform, own = torch.full((1, 1, n, n), 1 / n), torch.eye(n)[None, None]
    one_place = torch.zeros(1, 1, n, n)
    one_place[..., 4] = 1
    assert mutual_information(uniform).item() == pytest.approx(0, abs=1e-6)
    assert mutual_information(own).item() == pytest.approx(1, abs=1e-6)
    assert mutual_information(one_place).item() == 0
    assert mutual_information(own[..., torch.randperm(n), :]).item() == pytest.approx(
        1, abs=1e-6
    )  # any place of its own
    halves = torch.block_diag(torch.full((5, 5), 0.2), torch.full((5, 5), 0.2))[None, None]  # one bit, of log2(10)
    assert mutual_information(halves).item() == pytest.approx(math.log(2) / math.log(10), abs=1e-6)


def test_similarities_pair_by_pair():
    attention = random_attention(2, 4, 5, 5)
    array = attention.double().numpy()
    for b in range(2):
        flat = array[b].reshape(4, -1)
        heads = [cosine(flat[i], flat[j]) for i in range(4) for j in range(4) if i != j]
        assert head_similarity(attention)[b].item() == pytest.approx(np.mean(heads), abs=1e-5)
        for h in range(4):
            rows = [cosine(array[b, h, i], array[b, h, j]) for i in range(5) for j in range(5) if i != j]
            assert query_similarity(attention)[b, h].item() == pytest.approx(np.mean(rows), abs=1e-5)
        for i in range(4):
            for j in range(4):
                expected = cosine(flat[i], flat[j])
                assert depth_similarity(attention)[b, i, j].item() == pytest.approx(expected, abs=1e-5)


def test_similarities_known_by_hand():
    assert mean_cosine(torch.eye(4)).item() == pytest.approx(0, abs=1e-6)
    assert mean_cosine(torch.ones(4, 3) * torch.tensor([[1.0], [2], [3], [4]])).item() == pytest.approx(1)
    assert mean_cosine(torch.tensor([[1.0, 0], [-1, 0]])).item() == pytest.approx(-1)
    assert mean_cosine(torch.ones(2, 1, 5)).tolist() == [1, 1]  # one head: nothing to compare with


# Frequencies


@pytest.mark.parametrize("grid", [(4, 4), (6, 4), (3, 5), (1, 6)])
def test_log_amplitude_by_the_definition_of_the_transform(grid):
    rows, columns = grid
    tokens = draw(2, rows * columns, 3)
    image = tokens.double().numpy().reshape(2, rows, columns, 3)

    def amplitude(u, v):
        wave = np.exp(-2j * np.pi * (u * np.arange(rows)[:, None] / rows + v * np.arange(columns)[None] / columns))
        return np.log(np.abs((image * wave[None, :, :, None]).sum((1, 2)))).mean(-1)

    expected = np.stack([amplitude(u, v) - amplitude(0, 0) for u, v in diagonal(grid)], axis=1)
    np.testing.assert_allclose(log_amplitude(tokens, grid).numpy(), expected, atol=1e-4)


def test_the_diagonal_goes_from_none_to_the_highest():
    assert diagonal((4, 4)) == [(0, 0), (1, 1), (2, 2)]
    assert diagonal((5, 5)) == [(0, 0), (1, 1), (2, 2)]
    assert diagonal((8, 4)) == [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2)]
    assert diagonal((1, 4)) == [(0, 0), (0, 1), (0, 2)]


def test_frequencies_of_known_tokens():
    """White noise has all alike; a checkerboard has the highest only; what is smooth has little of it."""
    white = draw(200, 64, 16)
    assert log_amplitude(white, (8, 8)).mean(0)[-1].item() == pytest.approx(0, abs=0.05)
    board = torch.tensor([(-1.0) ** (r + c) for r in range(8) for c in range(8)])[None, :, None]
    assert log_amplitude(board + 0.01, (8, 8))[0, -1].item() == pytest.approx(math.log(100), abs=1e-3)
    smooth = torch.tensor([2 + math.cos(2 * math.pi * r / 8) for r in range(8) for _ in range(8)])[None, :, None]
    assert log_amplitude(smooth, (8, 8))[0, -1].item() < -10


# Dimensions


def test_singular_values_are_numpys(subtests):
    for n, d in [(12, 5), (5, 12), (6, 6)]:
        with subtests.test(n=n, d=d):
            x = draw(3, n, d) + 7
            for one, found in zip(x.double().numpy(), singular_values(x).numpy(), strict=True):
                expected = np.linalg.svd(one - one.mean(0), compute_uv=False)[: min(n - 1, d)]
                np.testing.assert_allclose(found, expected, rtol=1e-6)
                np.testing.assert_allclose(log_spectrum(torch.tensor(found)), np.log(expected / expected[0]), atol=1e-6)
                share = expected / expected.sum()
                entropy = -(share * np.log(share)).sum()
                assert effective_rank(torch.tensor(found)).item() == pytest.approx(np.exp(entropy))


def test_dimensions_of_known_tokens():
    flat = draw(40, 3) @ draw(3, 20, seed=1)  # three dimensions, however many channels
    spectrum = log_spectrum(singular_values(flat))
    assert (spectrum[:3] > -3).all()
    assert (spectrum[3:] < -10).all()
    assert effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0])).item() == pytest.approx(3)
    assert effective_rank(torch.tensor([5.0, 0.0, 0.0])).item() == pytest.approx(1)
    assert torch.isfinite(log_spectrum(singular_values(torch.ones(4, 3)))).all()  # collapsed: no spread at all
    assert torch.isfinite(effective_rank(singular_values(torch.ones(4, 3)))).all()


# Likeness of two representations


def test_cka_from_kernels_as_song_writes_it():
    x, y = draw(9, 4), draw(9, 6, seed=1)
    y[:, :2] += x[:, :2]

    def hsic(k, m):
        n = len(k)
        k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
        one = np.ones(n)
        first = np.trace(k @ m) + (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
        return (first - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3))

    a, b = x.double().numpy(), y.double().numpy()
    kernels = a @ a.T, b @ b.T
    expected = hsic(*kernels) / np.sqrt(hsic(kernels[0], kernels[0]) * hsic(kernels[1], kernels[1]))
    assert linear_cka(x, y) == pytest.approx(expected, abs=1e-9)


def test_cka_of_known_pairs():
    x = draw(100, 8)
    rotation = torch.linalg.qr(draw(8, 8, seed=1))[0]
    assert linear_cka(x, 3 * x @ rotation + 5) == pytest.approx(1, abs=1e-6)
    assert linear_cka(x, draw(100, 30, seed=2)) == pytest.approx(0, abs=0.05)  # the plain estimate would say 0.13
    assert 0.1 < linear_cka(x, torch.cat([x[:, :4], draw(100, 4, seed=3)], dim=1)) < 0.9
    assert linear_cka(x, torch.ones(100, 4)) == 0


# Noise


def test_noise_has_its_frequencies_and_strength_only(subtests):
    for band in BANDS:
        with subtests.test(band=band):
            noise = band_noise((3, 32, 48), band, seed=0, index=5)
            assert np.sqrt(np.mean(noise**2)) == pytest.approx(1, rel=1e-5)
            power = np.abs(np.fft.fft2(noise.astype(np.float64))) ** 2
            for u, row in enumerate(np.fft.fftfreq(32)):
                for v, column in enumerate(np.fft.fftfreq(48)):
                    outside = not band[0] < math.hypot(row, column) / 0.5 <= band[1]
                    assert (power[:, u, v].max() < 1e-4) == outside


def test_noise_is_a_function_of_seed_and_image():
    one = band_noise((1, 16, 16), BANDS[1], seed=0, index=5)
    assert np.array_equal(one, band_noise((1, 16, 16), BANDS[1], seed=0, index=5))
    assert not np.allclose(one, band_noise((1, 16, 16), BANDS[1], seed=0, index=6))
    assert not np.allclose(one, band_noise((1, 16, 16), BANDS[1], seed=1, index=5))
    with pytest.raises(ValueError, match="4x4"):
        band_noise((1, 4, 4), BANDS[0], seed=0, index=0)


# A model, depth by depth

SHAPES = {
    "class token": {},
    "registers": {"registers": 2},
    "no class token": {"class_token": False, "pool": "mean"},
    "wide": {"image_size": (8, 24)},
}


def tiny(**changes):
    shape = {"width": 16, "depth": 3, "heads": 2, "mlp_width": 32, "patch": 4, "image_size": (16, 16), "classes": 0}
    model = ViT(ViTConfig(**{**shape, **changes})).eval()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.add_(0.2 * draw(*parameter.shape, seed=number))
    return model


@pytest.mark.parametrize("name", SHAPES)
def test_a_survey_in_batches_is_the_mean_of_what_a_trace_tells(name):
    model = tiny(**SHAPES[name])
    images = draw(5, 3, *model.config.image_size)
    survey = Survey(model, 100)
    survey.add(images[:3])
    survey.add(images[3:])
    found = survey.measures()

    trace = Trace()
    with torch.no_grad():
        y = model.representation(images, trace=trace)
    prefix, grid = trace.prefix, trace.grid
    states = [trace.embedded, *(trace.tokens[layer] for layer in range(3))]
    patches = [z[:, prefix:] for z in states]
    attention = [patch_attention(trace.attention[layer], prefix) for layer in range(3)]

    def close(key, expected):
        np.testing.assert_allclose(np.array(found[key]), torch.stack(expected).numpy(), atol=2e-5)

    assert (survey.seen, survey.grid) == (5, grid)
    np.testing.assert_allclose(found["attention_distance"], attention_distance(model, images).mean(0), atol=1e-4)
    close("mutual_information", [mutual_information(a).mean(0) for a in attention])
    close("head_similarity", [head_similarity(a).mean() for a in attention])
    close("query_similarity", [query_similarity(a).mean() for a in attention])
    close("token_similarity", [mean_cosine(z).mean() for z in patches])
    close("log_amplitude", [log_amplitude(z, grid).mean(0) for z in patches])
    close("token_spectrum", [log_spectrum(singular_values(z)).mean(0) for z in patches])
    close("token_rank", [effective_rank(singular_values(z)).mean() for z in patches])
    layers = torch.stack([a.mean(1) for a in attention], dim=1)
    np.testing.assert_allclose(found["depth_similarity"], depth_similarity(layers).mean(0).numpy(), atol=2e-5)
    torch.testing.assert_close(survey.depths(), torch.stack([z.mean(1) for z in patches], dim=1))
    torch.testing.assert_close(survey.representations(), y)
    assert len(found["frequencies"]) == len(diagonal(grid))

    pooled, again = pool_depths(model, images)
    torch.testing.assert_close(pooled, survey.depths())
    torch.testing.assert_close(again, y)


def test_singular_values_stop_where_they_are_known_well_enough(monkeypatch):
    monkeypatch.setattr("vitreous.explain.analysis.depths.MAX_COSTLY_IMAGES", 4)
    model, images = tiny(), draw(9, 3, 16, 16)
    survey, short = Survey(model, 100), Survey(model, 100)
    for start in range(0, 9, 3):
        survey.add(images[start : start + 3])
    short.add(images[:4])
    np.testing.assert_allclose(survey.measures()["token_rank"], short.measures()["token_rank"], atol=1e-4)


def test_no_two_layers_attention_is_alive_at_once(monkeypatch):
    """What stays of a layer while the next one runs is the mean of its heads."""
    alive = []
    record = _Reading.record_attention

    def watch(self, layer, attention):
        assert not any(reference() is not None for reference in alive)
        alive.append(weakref.ref(attention))
        record(self, layer, attention)

    monkeypatch.setattr(_Reading, "record_attention", watch)
    Survey(tiny(), 2).add(draw(2, 3, 16, 16))
    assert len(alive) == 3


def test_the_best_depth_is_chosen_on_the_images_that_probes_learn_from():
    """Depth 1 holds the class, depth 0 nothing, depth 2 the class of most images."""
    labels = torch.tensor([0] * 12 + [1] * 12)
    right, features = torch.eye(2)[labels], torch.zeros(24, 3, 2)
    features[:, 1] = right
    features[:, 2] = torch.where((torch.arange(24) % 6 == 0)[:, None], 1 - right, right)

    def centroids(features, labels, classes):
        means = torch.stack([features[labels == k].mean(dim=0) for k in range(classes)])
        return lambda others: -torch.cdist(others, means)

    assert best_depth(centroids, features, labels, 2) == 1
    assert best_depth(centroids, features.flip(1), labels, 2) == 1
    assert best_depth(centroids, features[:, [2, 0, 1]], labels, 2) == 2
    assert best_depth(centroids, features[:1], labels[:1], 2) == 2, "one image tells nothing, so the last is taken"
