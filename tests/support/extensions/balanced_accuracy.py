"""A metric from outside the package: balanced accuracy, in which each class counts alike."""

import torch

from vitreous.evaluation.classify import Metric


def balanced_accuracy(p):
    right = (p.predicted == p.targets).double()
    return float(torch.stack([right[p.targets == k].mean() for k in p.targets.unique()]).mean())


METRIC = Metric(
    balanced_accuracy, "balanced accuracy", page_note="the mean of the accuracies of all classes", by_corruption=True
)
