"""What a teacher says of places, by hand for each kind of network; and that what is kept of it is kept whole."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from vitreous import UserError, ViT, ViTConfig
from vitreous.config.bit import BiTConfig
from vitreous.config.model import ModelConfig
from vitreous.config.stem import ConvStem
from vitreous.data.packed import ArraySource
from vitreous.evaluation.features import logits_key
from vitreous.evaluation.score_maps import (
    MapStore,
    StoredMaps,
    all_probabilities,
    image_digests,
    region_logits,
    top_classes,
)
from vitreous.model.family import build_network, named_config
from vitreous.model.network import Network, Outputs
from vitreous.storage import cache

VIT = ViTConfig(width=16, depth=2, heads=2, mlp_width=32, patch=4, image_size=(16, 24), classes=5)


def stirred(network, seed=0):
    """With weights in which nothing is zero or one, as classifiers and norms are at the start."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    return network.eval()


def random_images(size=(16, 24), count=3):
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(1))


def tokens_of(model, images):
    """(B, T, D) after the last norm, as NumPy."""
    with torch.no_grad():
        z, layout = model.embed(images)
        return model.encode(z, layout).double().numpy()


def linear(layer, x):
    return x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()


def layer_norm(layer, x):
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + layer.eps)
    return normed * layer.weight.detach().double().numpy() + layer.bias.detach().double().numpy()


def alone(model, images):
    """(B, N, prefix, D) by hand: in the last block the first tokens attend to one patch alone, for each patch."""
    c, block = model.config, model.blocks[-1]
    with torch.no_grad():
        z, layout = model.embed(images)
        for earlier in model.blocks[:-1]:
            z = earlier(z, layout)
    z = z.double().numpy()
    out = np.zeros((len(z), z.shape[1] - c.prefix, c.prefix, c.width))
    for b in range(len(z)):
        for i in range(z.shape[1] - c.prefix):
            value = np.split(linear(block.attn.qkv, layer_norm(block.norm1, z[b, c.prefix + i])), 3)[2]
            y = z[b, : c.prefix] + linear(block.attn.proj, value)  # all attention on one token
            hidden = torch.nn.functional.gelu(torch.from_numpy(linear(block.mlp.fc1, layer_norm(block.norm2, y))))
            y = y + linear(block.mlp.fc2, hidden.numpy())
            out[b, i] = layer_norm(model.norm, y)
    return out


def test_of_a_vit_or_hybrid_the_class_token_looks_at_each_patch_alone(subtests):
    for more in [{}, {"depth": 1}, {"registers": 2}, {"stem": ConvStem((8, 8))}, {"attention": "axial"}]:
        with subtests.test(more=more):
            model, images = stirred(ViT(replace(VIT, **more))), random_images()
            expected = linear(model.head, alone(model, images)[:, :, 0]).reshape(3, 4, 6, 5)
            np.testing.assert_allclose(region_logits(model, images), expected, atol=2e-5)


def test_where_norms_come_after_the_branches():
    model, images = stirred(ViT(replace(VIT, norm="after"))), random_images(count=1)
    block = model.blocks[-1]
    with torch.no_grad():
        z, layout = model.embed(images)
        z = model.blocks[0](z, layout).double().numpy()[0]
    value = np.split(linear(block.attn.qkv, z[1:]), 3, axis=1)[2]
    y = layer_norm(block.norm1, z[:1] + linear(block.attn.proj, value))
    hidden = torch.nn.functional.gelu(torch.from_numpy(linear(block.mlp.fc1, y))).numpy()
    y = layer_norm(block.norm2, y + linear(block.mlp.fc2, hidden))
    np.testing.assert_allclose(region_logits(model, images)[0].flatten(0, 1), linear(model.head, y), atol=2e-5)


def test_with_a_hidden_layer_before_the_classifier():
    model, images = stirred(ViT(replace(VIT, classifier="mlp"))), random_images()
    hidden = np.tanh(linear(model.pre_logits.fc, alone(model, images)[:, :, 0]))
    np.testing.assert_allclose(region_logits(model, images), linear(model.head, hidden).reshape(3, 4, 6, 5), atol=2e-5)


def test_with_a_distillation_token_both_classifiers_are_asked():
    model, images = stirred(ViT(replace(VIT, distilled=True))), random_images()
    both = alone(model, images)
    expected = (linear(model.head, both[:, :, 0]) + linear(model.head_dist, both[:, :, 1])) / 2
    np.testing.assert_allclose(region_logits(model, images), expected.reshape(3, 4, 6, 5), atol=2e-5)


def test_of_a_mean_of_patches_the_places_scores_have_the_images_as_their_mean():
    model, images = stirred(ViT(replace(VIT, pool="mean", class_token=False))), random_images()
    with torch.no_grad():
        torch.testing.assert_close(region_logits(model, images).mean(dim=(1, 2)), model(images), atol=1e-5, rtol=0)


def test_a_norm_after_the_mean_norms_each_patch():
    model, images = stirred(ViT(replace(VIT, pool="mean", class_token=False, norm_after_pool=True))), random_images()
    expected = linear(model.head, layer_norm(model.fc_norm, tokens_of(model, images)))
    np.testing.assert_allclose(region_logits(model, images), expected.reshape(3, 4, 6, 5), atol=1e-5)


def test_beside_the_class_token_each_patch_takes_the_place_of_the_mean():
    model, images = stirred(ViT(replace(VIT, pool="class+mean"))), random_images()
    tokens = tokens_of(model, images)
    both = np.concatenate([np.repeat(tokens[:, :1], 24, axis=1), tokens[:, 1:]], axis=2)
    np.testing.assert_allclose(region_logits(model, images), linear(model.head, both).reshape(3, 4, 6, 5), atol=1e-5)


def test_attention_pooling_of_one_patch_is_that_patch():
    model, images = stirred(ViT(replace(VIT, pool="attention", class_token=False))), random_images()
    patches = torch.from_numpy(tokens_of(model, images)).float()
    with torch.no_grad():
        alone = [model.head(model.fc_norm(model.attn_pool(patches[:, i : i + 1])[0])) for i in range(24)]
    torch.testing.assert_close(region_logits(model, images).flatten(1, 2), torch.stack(alone, 1), atol=1e-5, rtol=0)


def test_of_a_cnn_the_classifier_is_a_convolution_over_the_feature_map(subtests):
    for family in ["bit", "efficientnet"]:
        with subtests.test(family=family):
            small = BiTConfig(depths=(1, 1), width=0.5, image_size=(64, 96), classes=5, root="3x3")
            config = (
                small if family == "bit" else replace(named_config("efficientnet-b0"), image_size=(64, 96), classes=5)
            )
            model, images = stirred(build_network(config)), random_images((64, 96), 2)
            (layer,) = model.classifiers()
            with torch.no_grad():
                cells = model.feature_map(images)
                expected = nn.functional.conv2d(cells, layer.weight[:, :, None, None], layer.bias).permute(0, 2, 3, 1)
                found = region_logits(model, images)
                assert found.shape[1] * 1.5 == found.shape[2]
                torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
                torch.testing.assert_close(found.mean(dim=(1, 2)), model(images), atol=2e-4, rtol=1e-4)


def test_a_network_without_places_is_refused():
    class Blind(Network):
        def __init__(self) -> None:
            super().__init__()
            self.config: ModelConfig = VIT

        def outputs(self, images, *, keys=None):
            return Outputs(images.mean(dim=(2, 3)), images.mean(dim=(2, 3)))

    with pytest.raises(UserError, match="'vit'"):
        region_logits(Blind(), random_images())


# What is kept


def test_the_likeliest_classes_are_kept_and_the_rest_is_shared():
    scores = torch.tensor([[2.0, -1.0, 0.5, 4.0, 0.0, 1.0, -3.0]])
    exact = (scores[0] - scores[0].logsumexp(0)).exp().double().numpy()
    classes, shares = top_classes(scores, 3)
    assert classes.tolist() == [[3, 0, 5]]
    assert shares.dtype == torch.float16
    full = all_probabilities(classes, shares, 7)[0].double().numpy()
    np.testing.assert_allclose(full[[3, 0, 5]], exact[[3, 0, 5]], rtol=1e-3)
    np.testing.assert_allclose(full[[1, 2, 4, 6]], exact[[1, 2, 4, 6]].sum() / 4, rtol=2e-2)
    assert full.sum() == pytest.approx(1, abs=1e-6)


def test_with_few_classes_all_are_kept(subtests):
    for count in [2, 5, 6]:
        with subtests.test(count=count):
            scores = torch.randn(4, 3, count, generator=torch.Generator().manual_seed(0))
            full = all_probabilities(*top_classes(scores, 6), count)
            torch.testing.assert_close(full, scores.softmax(-1), atol=5e-4, rtol=0)
            torch.testing.assert_close(full.sum(-1), torch.ones(4, 3))


def test_a_class_of_nearly_all_leaves_nothing_below_zero():
    full = all_probabilities(*top_classes(torch.tensor([[30.0, 0.0, -5.0, 1.0]]), 2), 4)
    assert full.min() >= 0
    assert full[0, 0] == 1


def digest(number):
    return number.to_bytes(16, "little")


def stored(store, digests, name=str):
    return StoredMaps(store.index(), digests, store.classes, name)


def some(first, count, classes=7):
    return torch.randn(count, 2, 3, classes, generator=torch.Generator().manual_seed(first))


def test_what_was_written_is_read_again(tmp_path, subtests):
    for classes, kind in ((7, "u1"), (300, "<u2"), (70_000, "<u4")):
        with subtests.test(classes=classes):
            store = MapStore(tmp_path / str(classes), classes, 5)
            parts = {first: some(first, 4, classes) for first in (0, 4, 8)}
            store.write(([digest(first + i) for i in range(4)], scores) for first, scores in parts.items())
            (path,) = store.folder.iterdir()
            records = np.load(path, allow_pickle=False)
            assert records.dtype["classes"].base == np.dtype(kind)
            assert records.dtype["probabilities"].base == np.dtype("<f2")
            assert len(path.read_bytes()) < 12 * (16 + 6 * 5 * (2 + records.dtype["classes"].base.itemsize)) + 500
            assert set(store.index()) == {digest(i) for i in range(12)}
            maps = stored(store, [digest(9), digest(2), None, digest(77)], "image {}".format)
            expected = torch.stack([parts[8][1], parts[0][2]])
            found = maps.read(torch.tensor([0, 1]))
            torch.testing.assert_close(found, all_probabilities(*top_classes(expected, 5), classes), rtol=0, atol=0)
            for number in (2, 3):
                with pytest.raises(UserError, match=f"^image {number}:"):
                    maps.read(torch.tensor([number]))


def test_what_is_written_is_known_without_reading_it_again(tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.evaluation.score_maps.FILE_SECONDS", 0.0)
    store = MapStore(tmp_path / "maps", 7, 5)
    written = store.write(([digest(i)], some(i, 1)) for i in range(3))
    vain = store.write_unreadable([digest(5), digest(6)])
    assert vain == {digest(5): None, digest(6): None}
    assert store.index() == written | vain
    assert len(written) == 3
    assert all(path.exists() and row == 0 for path, row in written.values())
    assert store.write_unreadable([]) == {}
    assert len(list((tmp_path / "maps").iterdir())) == 4


def test_reading_many_images_and_files_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.evaluation.score_maps.FILE_SECONDS", 0.0)
    source = ArraySource("x", torch.zeros(600, 1, 2, 2, dtype=torch.uint8), np.zeros(600, np.int64), ("a",))
    told = []
    image_digests(source, lambda *done: told.append(done))
    assert told == [(256, 600), (512, 600), (600, 600)]
    told.clear()
    logits_key("teacher", source, lambda *done: told.append(done))
    assert told == [(256, 600), (512, 600), (600, 600)]
    told.clear()
    store = MapStore(tmp_path / "maps", 7, 5)
    store.write(([digest(i)], some(i, 1)) for i in range(3))
    store.index(lambda *done: told.append(done))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_what_was_made_before_a_crash_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.evaluation.score_maps.FILE_SECONDS", 0.0)  # a file for each batch
    store = MapStore(tmp_path / "maps", 7, 5)

    def crashing():
        yield [digest(0), digest(1)], some(0, 2)
        yield [digest(2), digest(3)], some(2, 2)
        raise RuntimeError("the power is gone")

    with pytest.raises(RuntimeError):
        store.write(crashing())
    assert set(store.index()) == {digest(i) for i in range(4)}


def test_a_damaged_file_counts_as_not_made(tmp_path, monkeypatch, subtests):
    monkeypatch.setattr("vitreous.evaluation.score_maps.FILE_SECONDS", 0.0)
    for damage in ("flip", "cut", "empty", "pickle", "other"):
        with subtests.test(damage):
            store = MapStore(tmp_path / damage, 7, 5)
            store.write(([digest(i)], some(i, 1)) for i in range(3))
            whole = stored(store, [digest(i) for i in range(3)])
            path, _ = store.index()[digest(1)]
            data = bytearray(path.read_bytes())
            data[-3] ^= 1
            if damage == "pickle":
                np.save(path, np.array([{}], dtype=object), allow_pickle=True)
            elif damage == "other":
                np.save(path, np.zeros(4))
            else:
                path.write_bytes({"flip": bytes(data), "cut": bytes(data[:-20]), "empty": b""}[damage])
            assert set(store.index()) == {digest(0), digest(2)}
            again = stored(store, [digest(i) for i in range(3)])
            assert [str(path) in remark for remark in store.remarks] == [True]
            assert not path.exists()
            kept = torch.tensor([0, 2])
            assert again.read(kept).equal(whole.read(kept))


def test_files_of_others_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps/mine.npy").write_bytes(b"precious")
    store = MapStore(tmp_path / "maps", 7, 5)
    assert store.index() == {}
    assert (tmp_path / "maps/mine.npy").read_bytes() == b"precious"
    assert store.remarks == []


def test_maps_that_a_training_reads_are_not_removed(tmp_path, monkeypatch):
    """It opens their files when it needs them, perhaps days after it has begun."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))
    used = MapStore.of("teacher", list("abcdefg"), 5)
    used.write([([digest(1)], some(1, 1))])
    maps = stored(used, [digest(1)])
    monkeypatch.setattr(cache, "LIMIT_BYTES", 0)
    new = cache.cache_path("features", "new")

    def pass_time(hours):
        then = used.folder.stat().st_mtime - hours * 3600
        os.utime(used.folder, (then, then))
        cache.evict(except_for=new)

    pass_time(hours=23)
    assert used.folder.exists()
    maps.read(torch.tensor([0]))
    pass_time(hours=23)
    assert used.folder.exists()
    monkeypatch.setattr("vitreous.evaluation.score_maps.MARK_SECONDS", 0.0)  # an hour passes
    maps.read(torch.tensor([0]))
    pass_time(hours=23)
    assert used.folder.exists()
    pass_time(hours=2)
    assert not used.folder.exists()


def test_a_file_that_vanishes_while_it_is_needed_is_a_sentence(tmp_path):
    store = MapStore(tmp_path / "maps", 7, 5)
    store.write([([digest(1)], some(1, 1))])
    maps = stored(store, [digest(1)])
    next((tmp_path / "maps").iterdir()).unlink()
    with pytest.raises(UserError, match=str(tmp_path / "maps")):
        maps.read(torch.tensor([0]))


def test_a_place_that_cannot_be_written_says_what_to_set(tmp_path):
    (tmp_path / "maps").write_text("a file in the way")
    with pytest.raises(UserError, match="VITREOUS_CACHE"):
        MapStore(tmp_path / "maps", 7, 5).write([([digest(1)], some(1, 1))])
