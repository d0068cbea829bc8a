"""What a teacher says of a batch: of the very views that the student sees, or of each image once.

Letters: B images of a batch, n of the source, C channels, H x W pixels, K classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.data.augment import resize
from vitreous.data.batch import Batch
from vitreous.data.batch_augment import LUMA, luma

Believe = Callable[[Tensor], Tensor]
"""Scores (B, K) to what is believed of each class, (B, K), rows that sum to 1."""


class Answers(ABC):
    """A teacher's answers. Neither a module nor copied: all copies of an objective ask the same teacher, and no
    checkpoint, average or optimizer sees it.
    """

    @abstractmethod
    def __call__(self, batch: Batch, believe: Believe) -> Tensor:
        """(B, K): what the teacher believes of each image, mixed as the images are; without gradients."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class ViewAnswers(Answers):
    """The teacher looks at the batch's images as the student does, varied and mixed, but prepared in its own way."""

    def __init__(self, scores: Callable[[Tensor], Tensor], own: Preprocess, students: Preprocess) -> None:
        """scores: (B, C, H, W) normalised by `own` to (B, K). students: how the batch's images were normalised."""
        self.scores, self.own, self.students = scores, own, students

    def __call__(self, batch: Batch, believe: Believe) -> Tensor:
        """See `Answers`."""
        with torch.no_grad():
            return believe(self.scores(prepared_anew(batch.images, self.students, self.own)).float())


class ImageAnswers(Answers):
    """The teacher has looked at every image once; of two that are mixed, its beliefs are mixed by the same shares."""

    def __init__(self, scores: Tensor) -> None:
        """scores: (n, K), one row for each image of the source that batches come from."""
        self.table = scores

    def __call__(self, batch: Batch, believe: Believe) -> Tensor:
        """See `Answers`."""
        believed = believe(self.table[batch.index])
        if batch.partner is None or batch.lam is None:
            return believed
        return torch.lerp(believe(self.table[batch.partner]), believed, batch.lam[:, None])


def prepared_anew(images: Tensor, given: Preprocess, wanted: Preprocess) -> Tensor:
    """Images (B, C, H, W) normalised in one way as another has them: its colours, size, mean and std.

    The whole image is resized, and nothing is cut off: whoever made the view has chosen what is on it.
    """
    same_colours = (given.mean, given.std) == (wanted.mean, wanted.std)
    if same_colours and images.shape[2:] == wanted.size:
        return images  # to the bit
    mean, std = _columns(given, images)
    pixels = images * std + mean  # from 0 to 1
    if given.channels != wanted.channels:
        pixels = _recoloured(pixels, wanted.channels)
    if pixels.shape[2:] != wanted.size:
        pixels = resize(pixels, wanted.size, wanted.interpolation).clamp_(0, 1)
    mean, std = _columns(wanted, images)
    return (pixels - mean) / std


def _columns(preprocess: Preprocess, like: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and std, (C, 1, 1) each."""
    mean, std = (torch.tensor(values, dtype=like.dtype) for values in (preprocess.mean, preprocess.std))
    return mean[:, None, None].to(like.device), std[:, None, None].to(like.device)


def _recoloured(pixels: Tensor, channels: int) -> Tensor:
    """Grey images in as many equal channels, or colour ones in grey."""
    if channels == 1 and pixels.shape[1] == len(LUMA):
        return luma(pixels)
    return pixels.mean(dim=1, keepdim=True).expand(-1, channels, -1, -1)
