"""Which of a teacher's labels a student learns from: confident ones, as many of each class (Xie et al. 2020, 3.1).

Letters: n images, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitreous.data.source import Labels, Probabilities
from vitreous.model.predictions import predicted_class

MAX_REPEATS = 3  # of an image of a rare class; beyond that, the few would be learned by heart


@dataclass(frozen=True)
class Choice:
    """The images that are taken, of which class each is, and how often it comes."""

    labels: Labels  # (n,) the likeliest class of each image
    confident: Labels  # (K,) images of each class that are confident enough
    each: int  # how many of each class were to be taken
    repeats: Labels  # (n,) how often each image is taken; 0 for those that are not

    @property
    def rows(self) -> Labels:
        """(m,) the images that are taken, in their order, each as often as it comes."""
        return np.repeat(np.arange(len(self.repeats), dtype=np.int64), self.repeats)

    def taken(self, classes: int) -> Labels:
        """(K,) different images of each class that are taken."""
        return np.bincount(self.labels[self.repeats > 0], minlength=classes).astype(np.int64)


def choose_labels(probabilities: Probabilities, *, confidence: float, each: int | None = None) -> Choice:
    """Of each class the images (n, K) that the teacher is most confident of, the same number for every class.

    confidence: the least probability of a label that is taken.
    each: how many of each class; None: the images that are confident enough, divided by the classes. A class that has
        fewer comes in repeats, its most confident once more than the others where it does not divide, and no image
        more often than `MAX_REPEATS` times.
    """
    count, classes = probabilities.shape
    labels = predicted_class(probabilities).astype(np.int64)
    best = probabilities[np.arange(count), labels]
    allowed = best >= confidence
    confident = np.bincount(labels[allowed], minlength=classes).astype(np.int64)
    each = -(-int(confident.sum()) // classes) if each is None else each
    repeats = np.zeros(count, dtype=np.int64)
    for label in np.flatnonzero(confident):
        members = np.flatnonzero(allowed & (labels == label))
        members = members[np.argsort(-best[members], kind="stable")]  # of equals the first
        times, rest = divmod(min(each, MAX_REPEATS * len(members)), len(members))
        repeats[members] = times
        repeats[members[:rest]] += 1
    return Choice(labels, confident, each, repeats)
