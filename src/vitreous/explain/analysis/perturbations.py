"""Images moved, shuffled and filtered, each by a chance of its own.

Letters in shapes: B images, C channels, H x W pixels. `index` holds the numbers of a batch's images: what is random
about one follows from the seed and its number, whatever batch it is in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.data.rng import generator
from vitreous.explain.analysis.measures import band_mask

SHIFT, SHUFFLE = 1, 2  # numbers of views of `generator`: for where an image moves, and for how its pieces are mixed
MAX_PIECES = 16
CUTOFFS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
"""Frequencies as shares of the highest that a row of pixels can hold (Nyquist's), in any direction."""

Size = tuple[int, int]
Index = Sequence[int]


def margin(size: Size) -> int:
    """How far an image may move, in pixels: a quarter of its shorter side.

    It depends on nothing but the size, so that models which see images of one size are moved on the same pixels.
    """
    return max(1, min(size) // 4)


def enlarged(preprocess: Preprocess) -> Preprocess:
    """How to see `margin` pixels more of an image each way, so that windows of the model's size can move within.

    Pixels that the centre crop leaves out are used first; where they are not enough, the image is enlarged.
    """
    more = margin(preprocess.size)
    size = preprocess.size[0] + more, preprocess.size[1] + more
    crop = max(side / resized for side, resized in zip(size, preprocess.resized, strict=True))
    return replace(preprocess, size=size, crop=min(1.0, crop))


def distances(size: Size, patch: int | None) -> list[int]:
    """By how many pixels to move: powers of two, and whole patches, as far as the margin goes."""
    most = margin(size)
    powers = {2**power for power in range(most.bit_length())}
    whole = set(range(patch, most + 1, patch)[:2]) if patch is not None else set()
    return sorted(distance for distance in powers | whole if distance <= most)


def moved_windows(images: Tensor, index: Index, *, size: Size, distance: int, seed: int) -> Tensor:
    """(B, C, *size): of each enlarged image a window, moved by so many pixels from where it is at distance 0.

    It moves up, down, left or right, by the image's chance, from one border of the enlarged image towards the
    other; the other way it is in the middle. So each window has only pixels of the image.
    """
    windows = []
    for image, number in zip(images, index, strict=True):
        room = [whole - side for whole, side in zip(image.shape[1:], size, strict=True)]
        axis, backwards = generator(seed, 0, number, SHIFT).integers(0, 2, size=2)
        start = [space // 2 for space in room]
        start[axis] = room[axis] - distance if backwards else distance
        windows.append(image[:, start[0] : start[0] + size[0], start[1] : start[1] + size[1]])
    return torch.stack(windows)


def piece_counts(size: Size, patch: int | None) -> list[int]:
    """In how many pieces along each side to cut: each at least twice the one before, and as many as there are patches.

    All divide both sides, so that all pieces are alike; none is a single pixel. An image that is not square has
    pieces of its own shape, and never as many along both sides as patches.
    """
    common = math.gcd(*size)
    counts: list[int] = []
    for count in range(2, min(MAX_PIECES, common // 2) + 1):
        if common % count == 0 and (not counts or count >= 2 * counts[-1]):
            counts.append(count)
    if patch is not None and size[0] == size[1] > patch > 1 and size[0] % patch == 0:
        counts.append(size[0] // patch)
    return sorted(set(counts))


def shuffled(images: Tensor, index: Index, *, pieces: int, seed: int) -> Tensor:
    """(B, C, H, W): each image cut into pieces x pieces, of which none stays in its place."""
    channels, height, width = images.shape[1:]
    rows, columns = height // pieces, width // pieces
    cut = images.reshape(-1, channels, pieces, rows, pieces, columns).permute(0, 2, 4, 1, 3, 5)
    cut = cut.reshape(len(images), pieces**2, channels, rows, columns)
    orders = torch.from_numpy(np.stack([_derangement(pieces, seed, number) for number in index]))
    cut = torch.stack([one[order] for one, order in zip(cut, orders, strict=True)])
    cut = cut.reshape(-1, pieces, pieces, channels, rows, columns).permute(0, 3, 1, 4, 2, 5)
    return cut.reshape(images.shape)


def _derangement(pieces: int, seed: int, number: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """An order of pieces**2 in which none has its own place; by chance every third or so is such."""
    rng = generator(seed, pieces, number, SHUFFLE)
    while True:
        order = rng.permutation(pieces**2)
        if (order != np.arange(pieces**2)).all():
            return order


def cutoffs(size: Size) -> list[float]:
    """Those of CUTOFFS that differ in what they keep of an image of this size."""
    kept = [int(low_mask(size, cutoff).sum()) for cutoff in CUTOFFS]
    return [cutoff for number, cutoff in enumerate(CUTOFFS) if number == 0 or kept[number] > kept[number - 1]]


def low_mask(size: Size, cutoff: float) -> Tensor:
    """(H, W) bool, in the order of `torch.fft.fft2`: the frequencies up to the cut-off, 0 (the mean) among them."""
    return torch.from_numpy(band_mask(size, (-1.0, cutoff)))


def low_pass(images: Tensor, *, cutoff: float) -> Tensor:
    """(B, C, H, W): the frequencies up to the cut-off alone; up to 0, the mean colour."""
    return _filtered(images, low_mask((images.shape[2], images.shape[3]), cutoff))


def high_pass(images: Tensor, *, cutoff: float) -> Tensor:
    """(B, C, H, W): the frequencies above the cut-off, and the mean colour."""
    mask = ~low_mask((images.shape[2], images.shape[3]), cutoff)
    mask[0, 0] = True
    return _filtered(images, mask)


def _filtered(images: Tensor, mask: Tensor) -> Tensor:
    width = images.shape[3]
    return torch.fft.irfft2(torch.fft.rfft2(images) * mask[:, : width // 2 + 1], s=images.shape[2:])


@dataclass(frozen=True)
class Perturbation:
    """What is done to images, more and more of it, and how its curve is shown."""

    title: str  # of its plot
    along: str  # what its strength is called
    reading: str  # how to read the curve
    strengths: Callable[[Size, int | None], Sequence[float]]  # by the size of images and the side of a patch
    change: Callable[[Tensor, Index, float, int], Tensor]  # (B, C, H, W) of images, their numbers, strength and seed
    doubles: bool = False  # whether strengths double

    def of_strength(self, strength: float, seed: int) -> Callable[[Tensor, Index], Tensor]:
        """What changes images, by their numbers."""
        return lambda images, index: self.change(images, index, strength, seed)


PERTURBATIONS: dict[str, Perturbation] = {
    "shuffled": Perturbation(
        "shuffled",
        "pieces along a side",
        "The image is cut into so many by so many pieces, and none stays in its place. High on the right: a bag of "
        "small parts. A steep fall: the arrangement matters.",
        piece_counts,
        lambda images, index, pieces, seed: shuffled(images, index, pieces=int(pieces), seed=seed),
        doubles=True,
    ),
    "low_pass": Perturbation(
        "low frequencies only",
        "up to, of the highest",
        "All frequencies above are taken away; at 0 the mean colour is left. An early rise: coarse shapes and colours "
        "are enough.",
        lambda size, patch: cutoffs(size),
        lambda images, index, cutoff, seed: low_pass(images, cutoff=cutoff),
    ),
    "high_pass": Perturbation(
        "high frequencies only",
        "above, of the highest",
        "All frequencies up to this one are taken away but for the mean colour. A late fall: fine texture is enough.",
        lambda size, patch: [cutoff for cutoff in cutoffs(size) if cutoff],
        lambda images, index, cutoff, seed: high_pass(images, cutoff=cutoff),
    ),
}
"""By the name in the JSON."""
