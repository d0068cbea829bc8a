"""A recipe's training, learned from a teacher too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace

from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.config.objective import Distill, Supervised
from vitreous.config.train import Training
from vitreous.errors import UserError
from vitreous.model.family import count_flops
from vitreous.training.recipes.supervised import with_fields

AFFORDABLE = 1.0
"""How much of a student's step a teacher may cost that looks at every view: half of the steps are left then."""


def distilled(training: Training, scratch: bool) -> Training:
    """The training with what DeiT adds to it: a teacher's answers, on a token of their own in a new ViT.

    scratch: the model is new; given weights have the tokens that they have.
    """
    if type(training.objective) is not Supervised:
        raise UserError(
            f"distill: a teacher's answers go with labels, and this recipe learns by {training.objective.kind}; "
            "take another recipe, or leave distill out."
        )
    model = with_token(training.model) if scratch else training.model
    return replace(training, model=model, objective=Distill(**asdict(training.objective)))


def decide_predictions(training: Training, teacher: ModelConfig, overrides: Iterable[str] = ()) -> Training:
    """The training with how the teacher is asked, and what of its answers is learned, unless a person changed that.

    It looks at every view, and its choice is learned; one that costs much looks at each image once instead. Of
    images that it was trained on itself it is then right nearly always, so its probabilities tell more than its
    choice.
    """
    objective = training.objective
    assert isinstance(objective, Distill)
    if "objective.answers" not in overrides:
        costly = count_flops(teacher) > AFFORDABLE * step_flops(training.model, objective)
        objective = replace(objective, answers="image" if costly else "view")
    if "objective.targets" not in overrides:
        objective = replace(objective, targets="soft" if objective.answers == "image" else "hard")
    return replace(training, objective=objective)


def step_flops(model: ModelConfig, objective: Supervised) -> float:
    """Operations of a student's step for one image, forward and twice that backward: the mean over all steps."""
    ends = objective.stages
    lengths = (end - before for before, end in zip((0.0, *ends), ends, strict=False))
    shares = (objective.keep_share(end - 1e-9) for end in ends)
    return 3 * sum(length * count_flops(model, share) for length, share in zip(lengths, shares, strict=True))


def with_token(model: ModelConfig) -> ModelConfig:
    """A new ViT with DeiT's distillation token beside the class token; whatever cannot have one as it is.

    A ViT that would average its patches reads the two tokens instead: that made no difference (docs/log.md).
    """
    if not isinstance(model, ViTConfig) or model.classifier != "linear" or model.norm_after_pool:
        return model
    return with_fields(model, class_token=True, distilled=True, pool="class")
