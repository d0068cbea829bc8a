"""Training speed of BiT-R50x1 and EfficientNet-B0 at 224 pixels beside `transformers`', in turns, on this machine.

    python benchmarks/cnn_speed.py [--rounds 7] [--batch 16] [--image-size 224]

A step is forward, cross-entropy, backward and SGD. Theirs runs with its channels first, as it comes, and last. Prints
images a second and the ratios, and writes benchmarks/results/cnn_speed.json, unless `--no-write` is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BitConfig, BitForImageClassification, EfficientNetConfig, EfficientNetForImageClassification

import torchvision_on_cpu  # noqa: F401  (before transformers)
from measure import best_seconds, write_result
from vitreous.model.family import build_network, named_config


def their_bit() -> nn.Module:
    """R50x1: the defaults of its configuration."""
    model: nn.Module = BitForImageClassification(BitConfig(num_labels=1000))  # type: ignore[call-arg,no-untyped-call]
    return model


def their_efficientnet() -> nn.Module:
    """B0."""
    sizes = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "num_labels": 1000}
    model: nn.Module = EfficientNetForImageClassification(EfficientNetConfig(**sizes))  # type: ignore[arg-type,no-untyped-call]
    return model


THEIRS = {"bit-r50x1": their_bit, "efficientnet-b0": their_efficientnet}


def step_job(network: nn.Module, images: Tensor, scores: Callable[[Tensor], Tensor]) -> Callable[[], object]:
    optimizer = torch.optim.SGD(network.train().parameters(), lr=1e-3, momentum=0.9)
    labels = torch.arange(len(images))

    def job() -> object:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(F.cross_entropy(scores(images), labels))
        return optimizer.step()

    return job


def jobs(name: str, images: Tensor) -> dict[str, Callable[[], object]]:
    """A training step of ours, and of theirs in both layouts."""
    ours = build_network(named_config(name).for_size((images.shape[2], images.shape[3])))
    first, last = THEIRS[name](), THEIRS[name]()
    last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    turned = images.contiguous(memory_format=torch.channels_last)
    return {
        "vitreous": step_job(ours, images, ours),
        "transformers": step_job(first, images, lambda x: first(x).logits),
        "transformers, channels last": step_job(last, turned, lambda x: last(x).logits),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--no-write", action="store_true")
    asked = parser.parse_args()
    rows = {}
    for name in THEIRS:
        images = torch.randn(asked.batch, 3, asked.image_size, asked.image_size)
        speeds = {who: asked.batch / s for who, s in best_seconds(jobs(name, images), asked.rounds).items()}
        rows[name] = {who: round(speed, 2) for who, speed in speeds.items()}
        for who, speed in speeds.items():
            print(f"{name:<16} {who:<28} {speed:>7.2f} images/s   ours: {speeds['vitreous'] / speed:.2f} times that")
    if not asked.no_write:
        asked_for = {"rounds": asked.rounds, "batch": asked.batch, "image_size": asked.image_size}
        write_result("cnn_speed", asked_for | {"images_per_second": rows})


if __name__ == "__main__":
    main()
