"""Positions on other grids: against scipy, a known ramp, and the identity."""

import numpy as np
import torch
from scipy.ndimage import zoom

from support.variants import random_images, random_model
from vitreous.model.position import resample_grid, sincos_2d, sincos_like

GRIDS = [((3, 4), (6, 8)), ((4, 4), (7, 3)), ((14, 14), (24, 24)), ((5, 9), (3, 20))]


def test_the_same_grid_is_the_identity(subtests):
    for how in ["bicubic", "bilinear"]:
        with subtests.test(how=how):
            table = torch.randn(12, 5)
            assert resample_grid(table, (3, 4), (3, 4), how) is table


def test_bilinear_is_the_original_codes_zoom(subtests):
    for old, new in GRIDS:
        with subtests.test(old=old, new=new):
            table = torch.randn(old[0] * old[1], 5)
            cells = table.numpy().reshape(*old, 5)
            expected = zoom(cells, (new[0] / old[0], new[1] / old[1], 1), order=1)
            np.testing.assert_allclose(
                resample_grid(table, old, new, "bilinear").numpy().reshape(*new, 5), expected, atol=1e-5
            )


def test_a_ramp_stays_a_ramp_on_a_grid_that_is_not_square():
    """Channel 0 grows by the column, channel 1 by the row; twice as fine, away from the border, cells lie between."""
    rows, columns = 6, 10
    row, column = torch.meshgrid(torch.arange(rows) * 1.0, torch.arange(columns) * 1.0, indexing="ij")
    ramp = torch.stack([column, row], dim=-1).reshape(-1, 2)
    fine = resample_grid(ramp, (rows, columns), (2 * rows, 2 * columns), "bicubic").reshape(12, 20, 2)
    expected_column = (torch.arange(20) + 0.5) / 2 - 0.5
    expected_row = (torch.arange(12) + 0.5) / 2 - 0.5
    inside = (slice(4, -4), slice(4, -4))
    torch.testing.assert_close(fine[..., 0][inside], expected_column.expand(12, 20)[inside], atol=1e-5, rtol=0)
    torch.testing.assert_close(fine[..., 1][inside], expected_row[:, None].expand(12, 20)[inside], atol=1e-5, rtol=0)


def test_coarser_grids_average_instead_of_skipping():
    """Antialias: a checkerboard seen from half the grid is grey."""
    board = ((torch.arange(16)[:, None] + torch.arange(16)) % 2).float().reshape(-1, 1)
    coarse = resample_grid(board, (16, 16), (8, 8), "bicubic").reshape(8, 8)
    torch.testing.assert_close(coarse[2:-2, 2:-2], torch.full((4, 4), 0.5), atol=0.01, rtol=0)


def test_sincos_between_the_trained_cells_is_the_same_wave():
    """On a grid three times as fine, every third cell lies on a trained cell."""
    trained = sincos_2d((4, 5), 16).reshape(4, 5, 16)
    fine = sincos_2d((12, 15), 16, trained=(4, 5)).reshape(12, 15, 16)
    torch.testing.assert_close(fine[1::3, 1::3], trained)


def test_resized_once_equals_resampled_on_the_fly(subtests):
    for position in ["learned-1d", "learned-2d", "sincos-2d", "relative"]:
        for size in [(24, 8), (16, 40)]:
            with subtests.test(position=position, size=size):
                model = random_model(position=position, registers=2)
                images = torch.randn(2, 3, *size)
                resized = model.resized(size)
                assert resized.config.image_size == size
                torch.testing.assert_close(resized(images), model(images), atol=1e-5, rtol=0)


def test_resizing_keeps_the_number_format(subtests):
    for dtype in [torch.bfloat16, torch.float64]:
        with subtests.test(dtype=dtype):
            resized = random_model().to(dtype).resized((16, 24))
            assert {p.dtype for p in resized.parameters()} == {dtype}


def test_resizing_keeps_the_positions_of_class_and_registers():
    model = random_model(registers=2)
    resized = model.resized((8, 8))
    assert torch.equal(resized.pos_embed[:, :3], model.pos_embed[:, :3])
    assert resized.pos_embed.shape == (1, 3 + 4, 16)


def test_resizing_to_the_same_size_changes_nothing():
    model = random_model(position="relative")
    images = random_images(model)
    assert torch.equal(model.resized(model.config.image_size)(images), model(images))


def test_fixed_positions_are_computed_once_and_nothing_that_is_traced_is_kept():
    """Not a tensor of an export's, and none that only inference may use."""
    grid, like = (3, 7), torch.zeros(1)

    class Positions(torch.nn.Module):
        def forward(self, x):
            return x * sincos_like(x, grid, 8, grid)

    exported = torch.export.export(Positions(), (torch.ones(21, 8),)).module()
    with torch.inference_mode():
        kept = sincos_like(like, grid, 8, grid)
    assert sincos_like(like, grid, 8, grid) is kept
    assert type(kept) is torch.Tensor
    assert kept.equal(sincos_2d(grid, 8, grid))
    assert exported(torch.ones(21, 8)).equal(kept)
    x = torch.ones(21, 8, requires_grad=True)
    (x * sincos_like(x, grid, 8, grid)).sum().backward()  # saved for the backward pass
    assert x.grad.equal(kept)
    half = sincos_like(like.bfloat16(), grid, 8, grid)
    assert half.equal(kept.bfloat16())
