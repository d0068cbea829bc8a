"""Which of a teacher's labels a student learns from: sure ones, as many of each class (Xie et al. 2020, section 3.1).

Letters: n images, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitreous.data.source import Labels, Shares
from vitreous.model.predictions import predicted_class

MOST_COPIES = 3
"""How often an image of a rare class may come; beyond that, the few would be learned by heart."""


@dataclass(frozen=True)
class Choice:
    """The images that are taken, of which class each is, and how often it comes."""

    labels: Labels
    """(n,) the likeliest class of each image."""
    sure: Labels
    """(K,) images of each class that are sure enough."""
    each: int
    """How many of each class were wanted."""
    copies: Labels
    """(n,) how often each image is taken; 0 for those that are not."""

    @property
    def rows(self) -> Labels:
        """(m,) the images that are taken, in their order, each as often as it comes."""
        found: Labels = np.repeat(np.arange(len(self.copies), dtype=np.int64), self.copies)
        return found

    def taken(self, classes: int) -> Labels:
        """(K,) different images of each class that are taken."""
        found: Labels = np.bincount(self.labels[self.copies > 0], minlength=classes).astype(np.int64)
        return found


def choose_labels(probabilities: Shares, *, confidence: float, each: int | None = None) -> Choice:
    """Of each class the images (n, K) that the teacher is surest of, the same number for every class.

    confidence: the least probability of a label that is taken.
    each: how many of each class; None: the images that are sure enough, divided by the classes. A class that has
        fewer comes in copies, its surest once more than the others where it does not divide, and no image more
        often than `MOST_COPIES` times.
    """
    count, classes = probabilities.shape
    labels = predicted_class(probabilities).astype(np.int64)
    best = probabilities[np.arange(count), labels]
    allowed = best >= confidence
    sure = np.bincount(labels[allowed], minlength=classes).astype(np.int64)
    wanted = -(-int(sure.sum()) // classes) if each is None else each
    copies = np.zeros(count, dtype=np.int64)
    for label in np.flatnonzero(sure):
        members = np.flatnonzero(allowed & (labels == label))
        members = members[np.argsort(-best[members], kind="stable")]  # of equals the first
        whole, rest = divmod(min(wanted, MOST_COPIES * len(members)), len(members))
        copies[members] = whole
        copies[members[:rest]] += 1
    return Choice(labels, sure, wanted, copies)
