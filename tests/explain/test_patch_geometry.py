"""Maps lie where the model looked, whatever the image's shape."""

import numpy as np
import pytest

from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.explain.patch_geometry import place_patches

PREPROCESS = Preprocess(size=(16, 24), crop=1.0)

# height and width of an image; left, top, right, bottom of what is seen of it, by hand
SHAPES = {
    (32, 48): (0, 0, 48, 32),
    (32, 64): (8, 0, 56, 32),
    (64, 48): (0, 16, 48, 48),
}


def test_each_patch_is_spread_over_its_own_pixels(subtests):
    """Every pixel by the formula: linear between centres, constant beyond the outermost, nothing outside the box."""
    for size, box in SHAPES.items():
        with subtests.test(size=size, box=box):
            place = place_patches(*size, PREPROCESS, patch=8)
            assert place.box == box
            assert place.grid == (2, 3)
            values = np.array([[1.0, 2.0, 5.0], [4.0, 0.0, 3.0]])
            found = place.upsample(values)
            assert found.shape == size
            left, top, right, bottom = box
            for y in range(size[0]):
                for x in range(size[1]):
                    inside = left <= x < right and top <= y < bottom
                    expected = by_hand(values, (y + 0.5 - top) / 16 - 0.5, (x + 0.5 - left) / 16 - 0.5) if inside else 0
                    assert found[y, x] == pytest.approx(expected, abs=1e-5)
                    assert place.seen()[y, x] == inside


def by_hand(values, row, column):
    row, column = np.clip(row, 0, 1), np.clip(column, 0, 2)
    r, c = min(int(row), 0), min(int(column), 1)
    down, across = row - r, column - c
    above = values[r, c] * (1 - across) + values[r, c + 1] * across
    below = values[r + 1, c] * (1 - across) + values[r + 1, c + 1] * across
    return above * (1 - down) + below * down


def test_padding_at_the_right_and_bottom_lies_outside_the_image():
    """An image of 11x14 with patches of 4 is padded to 12x16: a patch is still 4 pixels, the last ones stick out."""
    place = place_patches(11, 14, Preprocess(size=(11, 14)), patch=4)
    assert place.grid == (3, 4)
    assert place.step == (4, 4)
    assert place.upsample(np.ones((3, 4))).min() == 1
    rows, columns = place.centres()
    assert rows.tolist() == [2, 6, 10]
    assert columns.tolist() == [2, 6, 10, 14]


def test_a_point_belongs_to_a_patch():
    place = place_patches(32, 64, PREPROCESS, patch=8)  # seen: columns 8 to 56, patches of 16 pixels
    assert place.patch_at(8, 0) == 0
    assert place.patch_at(23.9, 15) == 0
    assert place.patch_at(24, 15) == 1
    assert place.patch_at(55, 31) == 5
    with pytest.raises(UserError, match=r"query 70,3.* 64 .* 32 "):
        place.patch_at(70, 3)
    with pytest.raises(UserError, match=r"query 3,3.* 8,0 .* 56,32"):
        place.patch_at(3, 3)
