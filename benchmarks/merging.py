"""Which blocks should merge tokens: how far each schedule moves a trained network's answers, and what it saves.

    python benchmarks/merging.py --weights TI16 --pets PETS

TI16: the file of a ViT-Ti/16 for ImageNet in timm's naming. PETS: a folder with train and test, one folder per class;
only training images are looked at. Nothing is trained. The measure is the KL divergence of ImageNet's probabilities
with merging from those without, in nats, which tells schedules apart where the accuracy of a few hundred images
cannot. Writes benchmarks/results/merging.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

from measure import write_result
from vitreous.config.model import ViTConfig
from vitreous.data.augment import normalise
from vitreous.data.opening import open_data
from vitreous.inference.conversion import sample_views
from vitreous.model.family import count_flops
from vitreous.model.precision import avoid_broken_amx
from vitreous.model.vit import ViT
from vitreous.weights.source import open_weights

IMAGES = 370
OURS = (4, 8, 12, 14, 15, 16)
IN_EVERY_BLOCK = (3, 6, 9, 10, 11, 12)
ALONE = 16
"""Tokens that one block merges where it is the only one."""
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--pets", type=Path, required=True)
    args = parser.parse_args()
    avoid_broken_amx()
    bundle = open_weights(args.weights)
    network = cast(ViT, bundle.model.eval())
    config = network.config
    views = sample_views(open_data(args.pets).splits["train"], bundle.preprocess, IMAGES).views
    images = normalise(views, bundle.preprocess)
    blocks = range(config.depth)
    plain, full = answers(network, images), count_flops(config)

    def measured(counts: tuple[int, ...]) -> dict[str, Any]:
        with merging(counts):
            moved = divergence(plain, answers(network.with_merge(1), images))
            saved = full / count_flops(network.with_merge(1).config)
        row = {
            "merged": list(counts),
            "times_fewer_operations": round(saved, 3),
            "nats": round(moved.mean().item(), 5),
            "standard_error": round(moved.std().item() / len(moved) ** 0.5, 5),
        }
        print(row, flush=True)
        return row

    found = {
        "images": len(images),
        "patches": config.patches,
        "ours": {count: measured(network.with_merge(count).config.merges(config.patches)) for count in OURS},
        "paper": {count: measured((count,) * (config.depth - 1) + (0,)) for count in IN_EVERY_BLOCK},
        "alone": {block: measured(tuple(ALONE * (block == other) for other in blocks)) for block in blocks[:-1]},
    }
    print(write_result("merging", found))


@contextmanager
def merging(counts: tuple[int, ...]) -> Iterator[None]:
    """Within, networks that merge do so by these counts, one for each block."""
    with patch.object(ViTConfig, "merges", lambda config, patches: counts):
        yield


@torch.inference_mode()
def answers(network: ViT, images: Tensor) -> Tensor:
    """(B, K) log probabilities."""
    return torch.cat([network(batch) for batch in torch.split(images, BATCH)]).log_softmax(dim=1)


def divergence(expected: Tensor, found: Tensor) -> Tensor:
    """(B,) nats, of log probabilities (B, K)."""
    return (expected.exp() * (expected - found)).sum(dim=1)


if __name__ == "__main__":
    main()
