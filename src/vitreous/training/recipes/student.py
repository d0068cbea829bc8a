"""Changes of a recipe for learning from a teacher: distillation, token labels, or Noisy Student."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace

from vitreous.config.efficientnet import EfficientNetConfig
from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.config.objective import Distill, Supervised, TokenLabel
from vitreous.config.train import Training
from vitreous.errors import UserError
from vitreous.model.family import count_flops
from vitreous.training.recipes.supervised import with_fields

MAX_TEACHER_COST = 1.0
"""The teacher's forward pass over the student's step, in FLOPs, up to which it predicts every view."""
JITTER = 0.4  # colour jitter instead of a policy, as in LV-ViT
DROPOUT = 0.1  # in every block of a Vision Transformer, as in the ViT paper
LAST_DROPOUT = 0.5  # before the classifier of an EfficientNet, as in Noisy Student
DROP_PATH = 0.1  # stochastic depth of the last layer; Noisy Student's 0.2 is for much deeper networks


def with_distillation(training: Training, scratch: bool) -> Training:
    """The training with DeiT's distillation, on a token of its own in a new ViT. scratch: whether the model is new; the
    tokens of given weights stay as they are."""
    if type(training.objective) is not Supervised:
        raise UserError(
            f"distill: a teacher's answers go with labels, and this recipe learns by {training.objective.kind}; "
            "take another recipe, or leave distill out."
        )
    model = with_distillation_token(training.model) if scratch else training.model
    return replace(training, model=model, objective=Distill(**asdict(training.objective)))


def choose_teacher_targets(training: Training, teacher: ModelConfig, overrides: Iterable[str] = ()) -> Training:
    """The training with how the teacher predicts and which targets are learned, unless the overrides say so.

    By default it predicts every view, and its hard labels are learned. An expensive teacher predicts each image once;
    on its own training images it is nearly always right then, so its probabilities are learned.
    """
    objective = training.objective
    assert isinstance(objective, Distill)
    if "objective.answers" not in overrides:
        costly = count_flops(teacher) > MAX_TEACHER_COST * step_flops(training.model, objective)
        objective = replace(objective, answers="image" if costly else "view")
    if "objective.targets" not in overrides:
        objective = replace(objective, targets="soft" if objective.answers == "image" else "hard")
    return replace(training, objective=objective)


def step_flops(model: ModelConfig, objective: Supervised) -> float:
    """Operations of a student's step for one image, forward and twice that backward: the mean over all steps."""
    ends = objective.stages
    lengths = (end - before for before, end in zip((0.0, *ends), ends, strict=False))
    shares = (objective.keep_fraction(end - 1e-9) for end in ends)
    return 3 * sum(length * count_flops(model, share) for length, share in zip(lengths, shares, strict=True))


def with_distillation_token(model: ModelConfig) -> ModelConfig:
    """A new ViT with DeiT's distillation token beside the class token; other models stay as they are. A
    ViT with mean pooling reads the two tokens instead: that made no difference (docs/log.md)."""
    if not isinstance(model, ViTConfig) or model.classifier != "linear" or model.norm_after_pool:
        return model
    return with_fields(model, class_token=True, distilled=True, pool="class")


def with_token_labels(training: Training) -> Training:
    """The training with LV-ViT's loss; a policy becomes colour jitter, because token labels do not follow rotations."""
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


def with_noise(training: Training, *, soft: bool) -> Training:
    """The training with Noisy Student's noise (Xie et al. 2020, section 2): RandAugment, dropout, stochastic depth.

    The teacher labels plain images; the student predicts the same labels for augmented images with dropout, and so
    learns more than its teacher. Stronger settings of the recipe stay, TrivialAugment too, which has the same
    operations. A family without dropout or stochastic depth goes without. soft: the labels are probabilities, which
    need no label smoothing.
    """
    augment, objective, model = training.augment, training.objective, training.model
    if augment.policy == "none":
        augment = replace(augment, policy="randaugment")
    if soft and isinstance(objective, Supervised):
        objective = replace(objective, label_smoothing=0.0)
    least = {"dropout": LAST_DROPOUT if isinstance(model, EfficientNetConfig) else DROPOUT, "drop_path": DROP_PATH}
    model = with_fields(model, **{name: max(value, getattr(model, name, 0.0)) for name, value in least.items()})
    return replace(training, model=model, augment=augment, objective=objective)
