"""Token merging against a transcription of the paper in NumPy, by hand, and through exporters."""

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from support.numpy_merge import NumpyMerging
from support.random_networks import SMALL_BIT, kept_bytes, scrambled
from support.variants import TINY, random_images, random_model
from vitreous import UserError, ViT, ViTConfig
from vitreous.config.model import preset
from vitreous.config.rope import Rope
from vitreous.model.family import count_activation_bytes, count_flops, count_forward_bytes, inference_batch
from vitreous.model.merge import Merging, match
from vitreous.model.network import MergesTokens, require
from vitreous.model.trace import Trace

DEEP = {"depth": 4, "image_size": (20, 24)}  # 30 patches
KINDS = {
    "class": {"merge": 3},
    "mean": {"merge": 4, "pool": "mean"},
    "mean without class token": {"merge": 4, "pool": "mean", "class_token": False},
    "class and mean, registers": {"merge": 5, "pool": "class+mean", "registers": 2},
    "attention pooling": {"merge": 2, "pool": "attention"},
    "distilled": {"merge": 3, "distilled": True},
    "qk norm": {"merge": 3, "qk_norm": True, "mlp": "swiglu"},
    "an odd number of patches": {"merge": 3, "image_size": (20, 20)},
    "as many as there are": {"merge": 1000, "pool": "mean"},
    "a first sixth of the blocks that merges none": {"merge": 2, "depth": 7},
    "rotary": {"merge": 3, "position": "none", "rope": Rope(), "registers": 2},
    "rotary of cells": {"merge": 4, "rope": Rope(10000, "cells", (3, 3), 1, True, True), "pool": "mean"},
}


class WithQkNorm(NumpyMerging):
    """Queries and keys are normed before all else: the keys that are compared too."""

    def dense(self, x, name):
        made = super().dense(x, name)
        if not name.endswith(".qkv"):
            return made
        d, width, attn = self.c.width // self.c.heads, self.c.width, name.removesuffix(".qkv")
        for part, norm in ((0, "q_norm"), (1, "k_norm")):
            for start in range(part * width, (part + 1) * width, d):
                made[:, start : start + d] = self.norm(made[:, start : start + d], f"{attn}.{norm}")
        return made


def truth_of(model):
    return (WithQkNorm if model.config.qk_norm else NumpyMerging)(model.config, model.state_dict())


def test_it_is_the_papers_algorithm(subtests):
    for name, changes in KINDS.items():
        with subtests.test(name):
            model = random_model(**{**DEEP, **changes})
            images, trace = random_images(model), Trace()
            with torch.no_grad():
                scores, traced = model(images), model(images, trace=trace)
            truth = truth_of(model)
            for i, image in enumerate(images.numpy().astype(np.float64)):
                expected = truth.image(image, None)
                np.testing.assert_allclose(scores[i], expected, atol=2e-4)
                np.testing.assert_allclose(traced[i], expected, atol=2e-4)
                for layer in range(model.config.depth):
                    np.testing.assert_allclose(trace.attention[layer][i], truth.apart(layer), atol=2e-4)
                    groups = {tuple(sorted(group)) for group in truth.history[layer]}
                    merged = layer in trace.groups  # none is known before the first merge
                    assert (grouped(trace.groups[layer][i]) if merged else {(patch,) for patch in range(30)}) == groups
                    for group, token in zip(truth.history[layer], truth.tokens[layer][truth.prefix :], strict=True):
                        seen = trace.tokens[layer][i, [truth.prefix + patch for patch in group]]
                        np.testing.assert_allclose(seen, np.broadcast_to(token, seen.shape), atol=1e-3)


def test_the_schedule_by_hand():
    """2 R in every second block after the first sixth; a last block that computes the class token alone merges none."""
    assert preset("Ti/16", merge=14).merges(196) == (0, 0, 28, 0, 28, 0, 28, 0, 28, 0, 28, 0)
    assert preset("Ti/16", merge=14).merges(98) == (0, 0, 14, 0, 14, 0, 14, 0, 14, 0, 14, 0)
    assert preset("L/16", merge=8).merges(196)[:8] == (0, 0, 0, 0, 16, 0, 16, 0)
    assert ViTConfig(**{**TINY, "depth": 7, "image_size": (16, 16), "merge": 3}).merges(16) == (0, 6, 0, 5, 0, 2, 0)
    assert ViTConfig(**{**TINY, "depth": 1, "image_size": (16, 16), "merge": 3}).merges(16) == (0,)


def grouped(firsts):
    """{(0, 3), (1,), ...} of the first patch of each one's group."""
    found = {}
    for patch, first in enumerate(firsts.tolist()):
        found.setdefault(first, []).append(patch)
    assert all(first == members[0] for first, members in found.items())
    return {tuple(members) for members in found.values()}


def test_patches_left_out_are_not_merged():
    model = random_model(**DEEP, merge=3, pool="mean")
    images = random_images(model)
    keep = torch.tensor([[3, 1, 4, 15, 9, 2, 6], [5, 3, 8, 9, 7, 10, 0]])
    with torch.no_grad():
        scores = model(images, keep_ids=keep)
    expected = truth_of(model)(images.numpy().astype(np.float64), keep.numpy())
    np.testing.assert_allclose(scores, expected, atol=2e-4)


def test_merging_none_is_the_same_network_to_the_bit(subtests):
    for pool in ["class", "mean", "attention"]:
        with subtests.test(pool=pool):
            model = random_model(**DEEP, pool=pool)
            images = random_images(model)
            before, after = Trace(), Trace()
            assert torch.equal(model(images), model.with_merge(0)(images))
            assert torch.equal(model(images, trace=before), model.with_merge(3).with_merge(0)(images, trace=after))
            assert all(torch.equal(before.attention[i], after.attention[i]) for i in range(4))
            assert after.groups == {}


def test_the_most_similar_pairs_by_hand():
    """Even places point up, right, down; odd places nearly up, nearly right, and between the two."""
    keys = torch.tensor([[[0.0, 1], [0.1, 1], [1, 0], [1, 0.01], [0, -1], [1, 0.9]]])
    pairs = match(keys, 2)
    assert pairs.joining.tolist() == [[3, 1]]  # 3 is nearer to 2 than 1 is to 0
    assert pairs.hosts.tolist() == [[2, 0]]
    assert pairs.staying.tolist() == [[5]]


def test_of_equals_the_first():
    pairs = match(torch.ones(2, 9, 3), 3)
    assert pairs.joining.tolist() == [[1, 3, 5]] * 2
    assert pairs.hosts.tolist() == [[0, 0, 0]] * 2
    assert pairs.staying.tolist() == [[7]] * 2


def test_means_by_size_by_hand():
    """Four tokens become two, then one: the mean of all four, although the second merging meets sizes 3 and 1."""
    merging = Merging(1, (2, 1), tracked=True)
    tokens = torch.tensor([[[9.0], [1.0], [2.0], [6.0], [3.0]]])
    merging.watch(torch.tensor([0.0, 1, 1, -0.1, 1])[None, :, None, None])
    left = merging.merge(tokens)
    assert left.flatten().tolist() == [9, 2, 6]
    assert merging.sizes.tolist() == [[1, 3, 1]]
    assert merging.groups().tolist() == [[0, 0, 2, 0]]
    assert merging.undo(left).flatten().tolist() == [9, 2, 2, 6, 2]

    merging.undone = False
    merging.watch(torch.ones(1, 3, 1, 1))
    assert merging.merge(left).flatten().tolist() == [9, 3]
    assert merging.sizes.tolist() == [[1, 4]]
    assert merging.groups().tolist() == [[0, 0, 0, 0]]


def test_sizes_add_up_to_the_patches():
    merging = Merging(2, (4, 3, 2, 1), tracked=True)
    z, draw = torch.randn(3, 2 + 17, 8), torch.Generator().manual_seed(0)
    for left in (13, 10, 8, 7):
        merging.watch(torch.randn(3, z.shape[1], 2, 4, generator=draw))
        z = merging.merge(z)
        assert z.shape == (3, 2 + left, 8)
        assert merging.sizes[:, :2].eq(1).all()
        assert merging.sizes[:, 2:].sum(dim=1).tolist() == [17] * 3
        counted = [torch.bincount(row, minlength=left + 2).tolist() for row in merging.merged_ids]
        assert counted == merging.sizes.int().tolist()


def test_a_constant_half_of_a_image_becomes_one_and_is_given_its_share():
    """Without positions, equal patches are equal tokens: merging them changes nothing, and maps stay as they were."""
    model = random_model(position="none", depth=3, image_size=(16, 32), merge=0)  # 4 x 8 patches
    image = random_images(model, count=1)
    image[..., 16:] = 0.3
    whole, merged = Trace(), Trace()
    with torch.no_grad():
        scores = model(image, trace=whole)
        fast = model.with_merge(4)(image)
        traced = model.with_merge(4)(image, trace=merged)
    right = [row * 8 + column for row in range(4) for column in range(4, 8)]
    groups = grouped(merged.groups[0][0])
    assert sum(len(group) - 1 for group in groups) == 8
    assert all(set(group) <= set(right) for group in groups if len(group) > 1)
    torch.testing.assert_close(merged.attention[1], whole.attention[1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(merged.attention[0], whole.attention[0], atol=1e-5, rtol=1e-4)
    one = random_model(position="none", depth=2, image_size=(16, 32))
    with torch.no_grad():  # of two blocks only the first merges, and merges nothing but equals
        torch.testing.assert_close(one.with_merge(4)(image), one(image), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(fast, traced, atol=1e-4, rtol=1e-4)
    assert scores.shape == fast.shape


def test_gradients_flow_through_and_the_same_to_the_bit_again():
    model = random_model(**DEEP, merge=3, pool="mean").double().train()
    images = random_images(model).double()
    runs = [torch.autograd.grad(model(images).square().sum(), list(model.parameters())) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    weight = model.patch_embed.proj.weight
    step = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e-6
    with torch.no_grad():
        weight += step
        up = model(images).square().sum()
        weight -= 2 * step
        down = model(images).square().sum()
        weight += step
    slope = next(
        g for (name, _), g in zip(model.named_parameters(), runs[0], strict=True) if name == "patch_embed.proj.weight"
    )
    assert float((slope * step).sum() * 2) == pytest.approx(float(up - down), rel=1e-3)


def test_flops_are_those_of_torchs_counter(subtests):
    for name, changes in KINDS.items():
        with subtests.test(name):
            model = random_model(**{**DEEP, **changes})
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                model(random_images(model, count=1))
            assert count_flops(model.config) == counter.get_total_flops()


def test_flops_with_patches_left_out():
    model = random_model(**DEEP, merge=3)
    keep = torch.arange(15)[None]
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(random_images(model, count=1), keep_ids=keep)
    whole = 2 * 15 * 3 * 4 * 4 * 16  # all patches are cut, but only those kept are embedded
    assert whole < count_flops(model.config, 0.5) == counter.get_total_flops()


def test_memory_is_what_autograd_keeps(subtests):
    for pool in ["class", "mean"]:
        with subtests.test(pool=pool):
            small = {"width": 64, "heads": 2, "mlp_width": 256, "depth": 5, "image_size": (48, 48), "merge": 9}
            model = random_model(**small, pool=pool)
            one_more = kept_bytes(model, 3) - kept_bytes(model, 2)
            assert count_activation_bytes(model.config) == pytest.approx(one_more, rel=0.05)
            plain = model.with_merge(0).config
            assert count_activation_bytes(model.config) < count_activation_bytes(plain)
            assert count_forward_bytes(model.config) < count_forward_bytes(plain)
            assert inference_batch(model.config) >= inference_batch(plain)


def test_another_merging_shares_the_weights():
    model = random_model(**DEEP)
    other = model.with_merge(5)
    assert (model.config.merge, other.config.merge) == (0, 5)
    assert all(a is b for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert not torch.equal(model(random_images(model)), other(random_images(model)))


def test_what_cannot_be_merged_is_refused(subtests):
    for changes, said in [
        ({"merge": -1}, "merge=-1"),
        ({"merge": 2.5}, "merge"),
        ({"merge": 2, "position": "relative"}, "position='relative'"),
        ({"merge": 2, "attention": "axial"}, "attention='axial'"),
        ({"merge": 2, "attention": "neighbourhood", "window": 3}, "attention='neighbourhood'"),
    ]:
        with subtests.test(changes=changes), pytest.raises(UserError, match=said):
            ViTConfig(**{**TINY, **changes})


def test_a_network_without_tokens_says_so():
    with pytest.raises(UserError, match="merge=8"):
        require(scrambled(SMALL_BIT), MergesTokens, "merge=8")


def test_one_patch_is_left_alone():
    model = random_model(image_size=(4, 4), merge=8, pool="mean")
    images = random_images(model)
    assert torch.equal(model(images), model.with_merge(0)(images))


def test_half_precision_compares_in_full():
    """In bfloat16 these two similarities are equal."""
    keys = torch.tensor([[[1.0, 0.0], [1.0, 0.02], [0.0, 1.0], [0.01, 1.0]]])
    with torch.autocast("cpu", torch.bfloat16):
        assert match(keys, 1).joining.tolist() == [[3]]


def test_means_have_all_digits_under_autocast():
    merging = Merging(0, (1,), tracked=False)
    merging.watch(torch.ones(1, 2, 1, 1))
    with torch.autocast("cpu", torch.bfloat16):  # which has 8 digits of the 12 that each number needs
        assert merging.merge(torch.tensor([[[4097.0], [4099.0]]])).tolist() == [[[4098.0]]]


def test_a_seed_gives_the_same_weights_with_and_without():
    a, b = ViT(ViTConfig(**TINY), seed=1), ViT(ViTConfig(**TINY, merge=2), seed=1)
    assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_tracing_for_other_tools(subtests):
    """OpenVINO's own converter, for one, traces a network, and its shapes are tensors then."""
    for merge in [0, 3]:
        with subtests.test(merge=merge):
            model = random_model(**DEEP, merge=merge).eval()
            images = random_images(model)
            with torch.no_grad():
                traced = torch.jit.trace(model, images, check_trace=False)
                torch.testing.assert_close(traced(images), model(images))
