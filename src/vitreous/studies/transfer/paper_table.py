"""Table 2 of "An Image is Worth 16x16 Words", and the arithmetic from operations to its unit, the TPUv3-core-day."""

from __future__ import annotations

from dataclasses import dataclass

PEAK = 61.5e12
"""Floating-point operations per second of a TPUv3 core in bfloat16: half of a chip's 123 teraflops, for a chip has two
cores (Google Cloud's page of TPU v3)."""
EXAFLOPS, DAYS = 4262, 2500  # ViT-H/14's pre-training: table 6's operations and table 2's core-days
DAY = 86_400
UTILISATION = EXAFLOPS * 1e18 / (DAYS * DAY * PEAK)
"""The share of the peak that these two say was reached: 32 %. It is assumed for other work too."""


@dataclass(frozen=True)
class CoreDays:
    """Operations as TPUv3-core-days, and what they follow from."""

    flops: float
    peak: float
    utilisation: float
    value: float

    def __str__(self) -> str:
        return (
            f"{self.flops:.3g} FLOPs / ({self.peak / 1e12:g}e12 FLOPs per second of a TPUv3 core x "
            f"{self.utilisation:.0%} utilisation x 86,400 seconds per day) = {self.value:.2g} TPUv3-core-days"
        )


def core_days(flops: float) -> CoreDays:
    """How many days one TPUv3 core would compute on it."""
    return CoreDays(flops, PEAK, UTILISATION, flops / (PEAK * UTILISATION * DAY))


@dataclass(frozen=True)
class Published:
    """A column of the table: a model, its accuracies in per cent with their standard deviations, and its price."""

    model: str
    accuracies: dict[str, str]
    core_days: float


BENCHMARKS = {
    "imagenet": "ImageNet",
    "imagenet-real": "ReaL",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "pets": "Pets",
    "flowers102": "Flowers-102",
    "vtab": "VTAB, 19 tasks",
}
"""The table's rows, by our names of the data."""


def _published(model: str, accuracies: str, days: float) -> Published:
    return Published(model, dict(zip(BENCHMARKS, accuracies.split("|"), strict=False)), days)


TABLE_2 = (
    _published(
        "ViT-H/14, JFT",
        "88.55 ± 0.04|90.72 ± 0.05|99.50 ± 0.06|94.55 ± 0.04|97.56 ± 0.03|99.68 ± 0.02|77.63 ± 0.23",
        2500,
    ),
    _published(
        "ViT-L/16, JFT",
        "87.76 ± 0.03|90.54 ± 0.03|99.42 ± 0.03|93.90 ± 0.05|97.32 ± 0.11|99.74 ± 0.00|76.28 ± 0.46",
        680,
    ),
    _published(
        "ViT-L/16, ImageNet-21k",
        "85.30 ± 0.02|88.62 ± 0.05|99.15 ± 0.03|93.25 ± 0.05|94.67 ± 0.15|99.61 ± 0.02|72.72 ± 0.21",
        230,
    ),
    _published(
        "BiT-L (ResNet152x4), JFT",
        "87.54 ± 0.02|90.54|99.37 ± 0.06|93.51 ± 0.08|96.62 ± 0.23|99.63 ± 0.03|76.29 ± 1.70",
        9900,
    ),
    _published("Noisy Student (EfficientNet-L2)", "88.4 / 88.5|90.55", 12300),
)
"""Means and standard deviations of three fine-tunings; Noisy Student's second figure is of Touvron et al. (2020)."""
