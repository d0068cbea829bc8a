"""What a model learns by: the objective of a training, each kind with its own fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from vitreous.arguments import Count, Fraction, NonNegative, Positive, PositiveFraction, Range, Rate, check_fields
from vitreous.config.data import MultiCrop, View
from vitreous.errors import UserError


@dataclass(frozen=True)
class ObjectiveConfig:
    """What every objective says of itself; a new one derives from this and adds its fields."""

    kind: ClassVar[str]  # its name in configurations, and its key in `vitreous.objectives.build.OBJECTIVES`
    networks: ClassVar[int] = 1  # how many copies of the network it holds

    @property
    def views(self) -> Mapping[str, View]:
        """The views of an image that a batch holds, by name."""
        return {"image": View()}

    @property
    def evaluates_views(self) -> bool:
        """Whether it is evaluated on these views of images set aside; else on images as evaluation sees them."""
        return set(self.views) != {"image"}

    @property
    def stages(self) -> tuple[float, ...]:
        """Up to which shares of the training a step costs the same; the last is 1."""
        return (1.0,)

    @property
    def description(self) -> str:
        """How it learns, in a few words."""
        return self.kind

    @property
    def whole_batch(self) -> str | None:
        """What compares the images of a batch with each other, so that the batch cannot be split; None if nothing."""
        return None

    @property
    def idle_fields(self) -> Mapping[str, str]:
        """Fields that do nothing now, and beside what."""
        return {}

    def keep_fraction(self, progress: float) -> float:
        """Which share of the patches the network looks at when this share of the training is done."""
        return 1.0

    @property
    def largest_keep_fraction(self) -> float:
        """The largest share of the patches that a step processes with gradients."""
        return max(self.keep_fraction(min(end, 1 - 1e-9)) for end in (*self.stages, 0.0))


@dataclass(frozen=True)
class Supervised(ObjectiveConfig):
    """Cross-entropy with labels, as the paper pre-trains and fine-tunes."""

    kind: ClassVar[str] = "supervised"

    label_smoothing: Rate = 0.0
    class_weights: bool = False  # weigh each class by the inverse of its share of the images
    keep_schedule: tuple[tuple[float, float], ...] = ()
    """A schedule of patch dropout: pairs (until this share of the steps, keep this share of the patches)."""

    def __post_init__(self) -> None:
        check_fields(self)
        ends = [end for end, _ in self.keep_schedule]
        if ends != sorted(ends) or any(not (0 < end <= 1 and 0 < keep <= 1) for end, keep in self.keep_schedule):
            raise UserError(
                f"keep_schedule={self.keep_schedule}: give rising shares of the steps, each with a share of patches to "
                "keep, 0 to 1."
            )

    @property
    def stages(self) -> tuple[float, ...]:
        return tuple(sorted({*(end for end, _ in self.keep_schedule), 1.0}))

    def keep_fraction(self, progress: float) -> float:
        return next((keep for end, keep in self.keep_schedule if progress < end), 1.0)


@dataclass(frozen=True)
class Distill(Supervised):
    """Cross-entropy with labels, and beside it what a teacher says (DeiT, Touvron et al. 2021).

    A network with a distillation token learns the labels with one classifier and the teacher's answers with the other;
    any other network learns both with the one that it has.
    """

    kind: ClassVar[str] = "distill"

    targets: Literal["hard", "soft"] = "hard"
    """hard: the class that the teacher takes for the right one. soft: its probabilities at a temperature."""
    weight: PositiveFraction = 0.5  # of the teacher's answers in the loss, lambda; the labels have the rest
    temperature: Annotated[float, Range(gt=0, le=1000)] = 3.0
    """tau of soft targets: the higher, the more the classes count that the teacher takes for wrong."""
    answers: Literal["view", "image"] = "view"
    """view: the teacher looks at what the student looks at, in every step. image: once at each image, as evaluation
    sees it, before the first step."""

    @property
    def description(self) -> str:
        kind = "its choice" if self.targets == "hard" else f"its probabilities at temperature {self.temperature:g}"
        seen = "every view" if self.answers == "view" else "each image, seen once"
        return f"{kind} for {seen}, weight {self.weight:g}"

    @property
    def idle_fields(self) -> Mapping[str, str]:
        return {"temperature": "without objective.targets=soft"} if self.targets == "hard" else {}


@dataclass(frozen=True)
class TokenLabel(Supervised):
    """Token labelling (LV-ViT, Jiang et al. 2021): labels, and for every patch token what a teacher says of it."""

    kind: ClassVar[str] = "token-label"

    token_weight: Positive = 0.5  # the paper's beta: how much the patch tokens count beside the label
    top: Count = 5
    """Classes whose probabilities are kept of a teacher's answer for a patch; the rest is shared by all others."""

    @property
    def description(self) -> str:
        return f"a label for every patch, weight {self.token_weight:g}"


@dataclass(frozen=True)
class Mae(ObjectiveConfig):
    """A masked autoencoder (He et al. 2021): most patches are hidden, and rebuilt from the others."""

    kind: ClassVar[str] = "mae"
    evaluates_views: ClassVar[bool] = True

    mask: Annotated[float, Range(gt=0, lt=1)] = 0.75  # the share of patches that is hidden
    decoder_width: Count = 512
    decoder_depth: Count = 8
    decoder_heads: Count = 16
    normalise: bool = True
    """Rebuild each patch less its own mean and over its own spread: better features, greyer images."""

    @property
    def largest_keep_fraction(self) -> float:
        return 1 - self.mask

    def __post_init__(self) -> None:
        check_fields(self)
        if self.decoder_width % self.decoder_heads or self.decoder_width % 4:
            raise UserError(
                f"decoder_width={self.decoder_width}: must be a multiple of 4, and of decoder_heads, "
                f"{self.decoder_heads}."
            )


@dataclass(frozen=True)
class MaskedPatch(ObjectiveConfig):
    """The paper's own self-supervision (appendix B.1.2): tell the mean colours of patches that are corrupted."""

    kind: ClassVar[str] = "masked-patch"
    evaluates_views: ClassVar[bool] = True

    mask: PositiveFraction = 0.5  # the share of patches that is corrupted, and whose colours are to be told
    by_mask_token: float = 0.8  # of these, the share whose embedding is replaced by a learned one
    by_other_patch: float = 0.1
    """Of these, the share whose embedding is replaced by that of another patch of the image; the rest is kept."""
    bits: Annotated[int, Range(1, 4)] = (
        3  # of each channel's mean: 3 tell 8 levels apart, which is 512 colours of three channels
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if min(self.by_mask_token, self.by_other_patch) < 0 or not self.by_mask_token + self.by_other_patch <= 1:
            raise UserError(
                f"by_mask_token={self.by_mask_token}, by_other_patch={self.by_other_patch}: give shares of the "
                "corrupted patches, 0 or more, together at most 1."
            )


@dataclass(frozen=True)
class Dino(ObjectiveConfig):
    """Self-distillation (Caron et al. 2021): a student learns what a teacher, its own average, says of other views."""

    kind: ClassVar[str] = "dino"
    networks: ClassVar[int] = 2

    crops: MultiCrop = field(default_factory=MultiCrop)
    hidden: Count = 2048  # units of the projection head's hidden layers
    bottleneck: Count = 256  # length of the vector that is compared with the prototypes
    prototypes: Annotated[int, Range(2)] = 65536  # K, the outputs of the head
    momentum: Fraction = 0.996  # how much of the teacher stays in a step; it rises to 1 by a cosine
    student_temperature: Positive = 0.1
    teacher_temperature: tuple[Positive, Positive] = (0.04, 0.07)
    """At first and after its warm-up: the lower, the sharper are the teacher's answers."""
    temperature_warmup: Fraction = 0.3  # share of the steps until the second temperature is reached
    centre_momentum: Fraction = 0.9  # how much of the centre stays in a step; 1 leaves it at zero, which is no centring
    sinkhorn_iterations: Annotated[int, Range(0)] = 0
    """Iterations of Sinkhorn-Knopp, which make all prototypes equally frequent in a batch, instead of the centre
    (DINOv2 has 3); 0 for the centre."""
    freeze_last_layer: Fraction = 0.01  # share of the steps in which the head's last layer stays as it is
    keep: PositiveFraction = 1.0  # share of a large view's patches that the student looks at; the teacher sees all
    koleo_weight: NonNegative = 0.0
    """Weight of KoLeo, the term that spreads the features of a batch (DINOv2 has 0.1); 0 for none."""
    ibot_weight: NonNegative = 0.0  # weight of iBOT's term of masked patches (DINOv2 has 1); 0 for none
    ibot_mask: tuple[float, float] = (0.1, 0.5)
    """Least and greatest share of masked patches, in every second large view."""

    @property
    def views(self) -> Mapping[str, View]:
        c = self.crops
        return {
            "global": View(c.global_views, c.global_scale, c.global_size),
            "local": View(c.local_views, c.local_scale, c.local_size),
        }

    @property
    def whole_batch(self) -> str | None:
        if self.sinkhorn_iterations:
            return "sinkhorn_iterations"
        return "koleo_weight" if self.koleo_weight else None

    @property
    def idle_fields(self) -> Mapping[str, str]:
        ibot = {} if self.ibot_weight else {"ibot_mask": "without objective.ibot_weight"}
        unless = "without objective.sinkhorn_iterations=0"
        return {**ibot, "centre_momentum": unless} if self.sinkhorn_iterations else ibot

    @property
    def largest_keep_fraction(self) -> float:
        return self.keep

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.ibot_mask[0] <= self.ibot_mask[1] < 1:
            raise UserError(f"ibot_mask={self.ibot_mask}: give two shares, 0 < least <= greatest < 1.")
        if self.ibot_weight and self.keep < 1:
            raise UserError(
                "ibot_weight and keep: a patch cannot be both left out and masked; set keep=1 or ibot_weight=0."
            )
        if self.crops.global_views < 2:
            raise UserError(f"global_views={self.crops.global_views}: the teacher and the student need two at least.")
