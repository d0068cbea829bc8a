"""Limited attention: tile by tile as by the full matrix with a mask, and what it saves."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from support.numpy_vit import NumpyViT
from support.variants import random_images, random_model
from vitreous import Trace, UserError, preset
from vitreous.model import attention_window
from vitreous.model.attention_window import AttentionWindow, count_logits, tiles_of
from vitreous.model.family import count_flops
from vitreous.model.neighbourhood import attend_within
from vitreous.model.position import Layout

NEAR = {"attention": "neighbourhood", "window": 3}
PIXELS = {"patch": 1, "width": 8, "heads": 2}


def mask_by_hand(reach, grid, prefix):
    """Which token sees which, one pair after another."""
    cells = [None] * prefix + [(row, column) for row in range(grid[0]) for column in range(grid[1])]

    def within(apart, limit):
        return limit is None or apart <= limit

    return torch.tensor(
        [
            [
                a is None or b is None or (within(abs(a[0] - b[0]), reach[0]) and within(abs(a[1] - b[1]), reach[1]))
                for b in cells
            ]
            for a in cells
        ]
    )


def test_tiles_read_what_the_masked_matrix_reads_and_pass_the_same_gradients(monkeypatch, subtests):
    for prefix in [0, 1, 3]:
        for grid, reach in [
            ((9, 13), AttentionWindow(1, 1)),  # the tiles go beyond the grid
            ((6, 6), AttentionWindow(2, 2)),
            ((16, 4), AttentionWindow(1, 5)),  # a side that the reach covers
            ((5, 7), AttentionWindow(0, None)),
            ((7, 5), AttentionWindow(None, 0)),
            ((1, 20), AttentionWindow(2, 2)),
        ]:
            with subtests.test(prefix=prefix, grid=grid, reach=reach):
                monkeypatch.setattr(attention_window, "MIN_TILED_PATCHES", 1)
                monkeypatch.setattr(attention_window, "MAX_TILED_FRACTION", 100.0)
                tokens = prefix + grid[0] * grid[1]
                draw = torch.Generator().manual_seed(0)
                q, k, v = (torch.randn(2, 3, tokens, 4, generator=draw, requires_grad=True) for _ in range(3))
                found, _ = attend_within(reach, Layout(grid, prefix, None), q, k, v, None, explicit=False)
                mask = mask_by_hand(reach, grid, prefix)
                expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
                weight = torch.randn(expected.shape, generator=draw)
                for ours, theirs in zip(
                    torch.autograd.grad((found * weight).sum(), (q, k, v)),
                    torch.autograd.grad((expected * weight).sum(), (q, k, v)),
                    strict=True,
                ):
                    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_gradients_are_the_derivatives(monkeypatch):
    monkeypatch.setattr(attention_window, "MIN_TILED_PATCHES", 1)
    monkeypatch.setattr(attention_window, "MAX_TILED_FRACTION", 100.0)
    draw = torch.Generator().manual_seed(0)
    qkv = [torch.randn(1, 1, 1 + 6, 2, generator=draw, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def read(q, k, v):
        return attend_within(AttentionWindow(1, 1), Layout((3, 2), 1, None), q, k, v, None, explicit=False)[0]

    assert torch.autograd.gradcheck(read, qkv)


def test_a_window_as_large_as_the_image_is_full_attention_to_the_bit(subtests):
    for changes in [{}, {"pool": "mean", "registers": 2}, {"position": "relative"}]:
        with subtests.test(changes=changes):
            full = random_model(**changes)
            near = random_model(**changes, attention="neighbourhood", window=7)  # of 3 rows and 4 columns
            images = random_images(full)
            with torch.no_grad():
                assert torch.equal(near(images), full(images))
            assert count_flops(near.config) == count_flops(full.config)
            smaller = random_model(**changes, attention="neighbourhood", window=5)
            assert not torch.allclose(smaller(images), full(images), atol=1e-4)


def test_a_chosen_part_of_the_patches_sees_its_neighbours_among_them(subtests):
    for changes in [NEAR, {"attention": "axial"}]:
        with subtests.test(changes=changes):
            model = random_model(**changes)
            images = random_images(model)
            keep = torch.tensor([[0, 5, 11, 4], [7, 2, 3, 6]])
            expected = NumpyViT(model.config, model.state_dict())(images.double().numpy(), keep.numpy())
            with torch.no_grad():
                np.testing.assert_allclose(model(images, keep_ids=keep).numpy(), expected, atol=1e-5, rtol=0)


def test_a_trace_of_tiled_layers_is_the_masked_matrix_and_changes_nothing(subtests):
    for changes in [{**NEAR, "image_size": (24, 24)}, {"attention": "axial", "image_size": (12, 14)}]:
        with subtests.test(changes=changes):
            model = random_model(**PIXELS, **changes, pool="mean")
            assert tiles_of(model.blocks[0].attn.window, model.config.grid) is not None
            images, trace = random_images(model, count=1), Trace()
            with torch.no_grad():
                torch.testing.assert_close(model(images, trace=trace), model(images), atol=1e-5, rtol=0)
            for layer, block in enumerate(model.blocks):
                unseen = ~mask_by_hand(block.attn.window, model.config.grid, 1)
                assert (trace.attention[layer][0, :, unseen] == 0).all()
                torch.testing.assert_close(trace.attention[layer].sum(-1), torch.ones(1, 2, len(unseen)))


def test_axial_attention_takes_turns_and_two_blocks_see_the_whole_image():
    """Without a class token to pass it on, a pixel's change reaches its row after one block, all after two."""
    model = random_model(attention="axial", class_token=False, pool="mean", depth=2)
    images, reached = random_images(model, count=1), []
    for layer in (0, 1):
        trace = Trace([layer], attention=False)
        pixel = images.clone().requires_grad_()
        model(pixel, trace=trace)
        tokens = trace.tokens[layer][0].view(3, 4, -1)
        (gradient,) = torch.autograd.grad(tokens[1, 2].sum(), pixel)
        reached.append(F.max_pool2d(gradient.abs().sum(1), 4)[0] > 0)
    assert torch.equal(reached[0], torch.tensor([[False] * 4, [True] * 4, [False] * 4]))
    assert reached[1].all()


def test_scores_grow_with_the_number_of_patches_and_not_with_its_square():
    near, full = preset("Ti/8", attention="neighbourhood", window=7), AttentionWindow(3, 3)
    one, four = (count_logits(full, (side, side), 1) for side in (56, 112))
    assert 3.9 < four / one < 4.1
    assert one < 0.08 * (56 * 56 + 1) ** 2
    assert count_flops(near) < 0.75 * count_flops(preset("Ti/8"))


def test_exported_equals_eager_at_another_batch():
    model = random_model(**PIXELS, **NEAR, image_size=(24, 24))
    exported = torch.export.export(
        model, (random_images(model, count=3),), dynamic_shapes={"images": {0: torch.export.Dim("batch")}}
    )
    images = random_images(model, count=5)
    with torch.no_grad():
        torch.testing.assert_close(exported.module()(images), model(images), atol=1e-5, rtol=0)


def test_a_window_that_cannot_be_is_refused(subtests):
    for window in (None, 0, 4, -3, 2.5):
        named = "attention='neighbourhood'" if window in (None, 4) else ""
        with subtests.test(window=window), pytest.raises(UserError, match=f"^window={window}: .*{named}"):
            random_model(attention="neighbourhood", window=window)


def test_a_window_without_a_neighbourhood_is_refused():
    with pytest.raises(UserError, match=r"window=3.*attention='neighbourhood'"):
        random_model(window=3)
    with pytest.raises(UserError, match=r"^attention='local'.*full, neighbourhood, axial"):
        random_model(attention="local")
