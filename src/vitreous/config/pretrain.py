"""How a model learns without labels: what each method needs beside a `Training`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vitreous.config.data import MultiCrop
from vitreous.errors import UserError


@dataclass(frozen=True)
class Mae:
    """A masked autoencoder (He et al. 2021): most patches are hidden, and rebuilt from the others."""

    mask: float = 0.75
    """The share of patches that is hidden."""
    decoder_width: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    normalise: bool = True
    """Rebuild each patch less its own mean and over its own spread: better features, greyer pictures."""

    def __post_init__(self) -> None:
        if not 0 < self.mask < 1:
            raise UserError(f"mask={self.mask}: give the share of hidden patches, above 0 and below 1.")
        _check_counts(self, "decoder_width", "decoder_depth", "decoder_heads")
        if self.decoder_width % self.decoder_heads or self.decoder_width % 4:
            raise UserError(
                f"decoder_width={self.decoder_width}: must be a multiple of 4, and of decoder_heads, "
                f"{self.decoder_heads}."
            )


@dataclass(frozen=True)
class Dino:
    """Self-distillation (Caron et al. 2021): a student learns what a teacher, its own average, says of other views."""

    crops: MultiCrop = field(default_factory=MultiCrop)
    hidden: int = 2048
    """Units of the projection head's hidden layers."""
    bottleneck: int = 256
    """Length of the vector that is compared with the prototypes."""
    prototypes: int = 65536
    """K, the outputs of the head."""
    momentum: float = 0.996
    """How much of the teacher stays in a step; it rises to 1 by a cosine."""
    student_temperature: float = 0.1
    teacher_temperature: tuple[float, float] = (0.04, 0.07)
    """At first and after its warm-up: the lower, the sharper are the teacher's answers."""
    temperature_warmup: float = 0.3
    """Share of the steps until the second temperature is reached."""
    centre_momentum: float = 0.9
    """How much of the centre stays in a step; 1 leaves it at zero, which is no centring."""
    balance: int = 0
    """Rounds of Sinkhorn-Knopp, which make all prototypes equally frequent in a batch, instead of the centre (DINOv2
    has 3); 0 for the centre."""
    frozen: float = 0.01
    """Share of the steps in which the head's last layer stays as it is."""
    keep: float = 1.0
    """Share of a large view's patches that the student looks at; the teacher sees all."""
    koleo: float = 0.0
    """Weight of the term that spreads the features of a batch (DINOv2 has 0.1); 0 for none."""
    masked: float = 0.0
    """Weight of the term of masked patches (iBOT; DINOv2 has 1); 0 for none."""
    masked_share: tuple[float, float] = (0.1, 0.5)
    """Least and greatest share of masked patches, in every second large view."""

    def __post_init__(self) -> None:
        for name in ("teacher_temperature", "masked_share"):
            low, high = getattr(self, name)
            object.__setattr__(self, name, (low, high))
        _check_counts(self, "hidden", "bottleneck", "prototypes")
        for name in ("momentum", "centre_momentum", "temperature_warmup", "frozen"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name}={getattr(self, name)}: must be between 0 and 1.")
        if self.prototypes < 2:
            raise UserError(f"prototypes={self.prototypes}: must be at least 2, or there is nothing to tell apart.")
        if not 0 < self.keep <= 1:
            raise UserError(f"keep={self.keep}: must be above 0 and at most 1.")
        if not min(self.student_temperature, *self.teacher_temperature) > 0:
            raise UserError("student_temperature and teacher_temperature: must be above 0.")
        if min(self.koleo, self.masked, self.balance) < 0:
            raise UserError(f"koleo={self.koleo}, masked={self.masked}, balance={self.balance}: must be 0 or more.")
        if not 0 < self.masked_share[0] <= self.masked_share[1] < 1:
            raise UserError(f"masked_share={self.masked_share}: give two shares, 0 < least <= greatest < 1.")
        if self.masked and self.keep < 1:
            raise UserError("masked and keep: a patch cannot be both left out and masked; set keep=1 or masked=0.")
        if self.crops.global_views < 2:
            raise UserError(f"global_views={self.crops.global_views}: the teacher and the student need two at least.")


Method = Mae | Dino

_KINDS: dict[str, type[Mae] | type[Dino]] = {"mae": Mae, "dino": Dino}


def method_to_json(method: Method) -> dict[str, Any]:
    """Every field, and which method it is, for `json.dumps`."""
    return {"kind": type(method).__name__.lower(), **asdict(method)}


def method_from_json(fields: dict[str, Any], where: Path) -> Method:
    """The same method again; `where` is the file that it comes from."""
    rest = dict(fields)
    try:
        kind = _KINDS[rest.pop("kind")]
        if "crops" in rest:
            rest["crops"] = MultiCrop(**rest["crops"])
        return kind(**rest)
    except (KeyError, TypeError):
        raise UserError(
            f"{where}: its method of pre-training has other fields than this version of vitreous knows; use the "
            "version that wrote it, or train anew with another --out."
        ) from None


def _check_counts(config: Mae | Dino, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise UserError(f"{name}={getattr(config, name)}: must be at least 1.")
