"""A recipe's training with a label for every patch."""

from __future__ import annotations

from dataclasses import asdict, replace

from vitreous.config.model import ViTConfig
from vitreous.config.objective import Supervised, TokenLabel
from vitreous.config.train import Training
from vitreous.errors import UserError

JITTER = 0.4  # colour jitter in place of a policy, as LV-ViT has it


def token_labelled(training: Training) -> Training:
    """The training with LV-ViT's loss; a policy, whose rotations and shears no label follows, becomes colour jitter."""
    if not isinstance(training.model, ViTConfig):
        raise UserError(
            f"token_labels: a label for every patch needs a model with patches, and one of the family "
            f"{training.model.family!r} has none; train a Vision Transformer or a hybrid, such as Ti/16."
        )
    if type(training.objective) is not Supervised:
        raise UserError(
            f"token_labels: go with labels of images, and this recipe learns by {training.objective.kind}; take "
            "another recipe, or leave token_labels out."
        )
    augment = training.augment
    if augment.policy != "none":
        augment = replace(augment, policy="none", jitter=max(augment.jitter, JITTER))
    return replace(training, objective=TokenLabel(**asdict(training.objective)), augment=augment)
