"""What attention costs as images grow: to all patches, to a neighbourhood, and along rows and columns.

    python benchmarks/attention_cost.py [--rounds 5]

One block of ViT-Ti with patches of 8 pixels, the class token in front, one image, one thread: forward, and forward
with backward. Each runs in turn; what counts is the best round, in seconds of the processor, which other programs on
the machine disturb less than the clock. "Masked" is the same neighbourhood by the full matrix. With a fixed window time
should grow as the number of patches does: `growth` is the exponent between the two largest grids, 1 for linear, 2 for
quadratic. Memory: numbers that training keeps, counted. Writes benchmarks/results/attention_cost.json.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from measure import write_result
from vitreous import ViTConfig, preset
from vitreous.model.family import count_activation_bytes, count_flops
from vitreous.model.neighbourhood import window_mask
from vitreous.model.position import Layout
from vitreous.model.vit import Block

SIDES = (14, 28, 56, 80)
WINDOW = 7
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "neighbourhood": {"attention": "neighbourhood", "window": WINDOW},
    "axial": {"attention": "axial"},
}


def config(side: int, **changes: Any) -> ViTConfig:
    """One block of Ti/8 on a square grid; all its tokens are read."""
    return preset("Ti/8", image_size=(8 * side, 8 * side), depth=1, pool="mean", classes=0, **changes)


def jobs_for(side: int) -> dict[str, Callable[[], object]]:
    """A forward pass, and one with the backward pass, of each kind."""
    layout = Layout((side, side), 1, None)
    tokens = torch.randn(1, 1 + side * side, 192)
    jobs: dict[str, Callable[[], object]] = {}
    blocks = {kind: Block(config(side, **changes), drop_path=0.0) for kind, changes in KINDS.items()}
    for block in blocks.values():
        for parameter in block.parameters():
            torch.nn.init.normal_(parameter, std=0.02)

    def forward(block: Block) -> Tensor:
        with torch.no_grad():
            out: Tensor = block(tokens, layout)
            return out

    def both(block: Block) -> None:
        block(tokens, layout).sum().backward()

    for kind, block in blocks.items():
        jobs[f"{kind}, forward"] = lambda block=block: forward(block)  # type: ignore[misc]
        jobs[f"{kind}, both"] = lambda block=block: both(block)  # type: ignore[misc]
    if side <= 56:
        reach = blocks["neighbourhood"].attn.window
        q = torch.randn(1, 3, 1 + side * side, 64)

        def masked() -> Tensor:
            bias = torch.zeros(1, 1, q.shape[2], q.shape[2]).masked_fill(~window_mask(reach, layout), float("-inf"))
            return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=bias)

        jobs["masked attention alone, forward"] = masked
    return jobs


def measure(jobs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Processor seconds of each job, in turns: the best round after one to warm up."""
    best = dict.fromkeys(jobs, math.inf)
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            if turn:
                best[name] = min(best[name], time.process_time() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for side in SIDES:
        seconds = measure(jobs_for(side), rounds)
        row: dict[str, Any] = {"patches": side * side, "seconds": {name: round(s, 5) for name, s in seconds.items()}}
        row["gflops"] = {kind: round(count_flops(config(side, **changes)) / 1e9, 4) for kind, changes in KINDS.items()}
        row["kept_mb"] = {
            kind: round(count_activation_bytes(config(side, **changes)) / 1e6, 2) for kind, changes in KINDS.items()
        }
        rows.append(row)
        print(row, flush=True)
    before, last = rows[-2], rows[-1]
    ratio = math.log(last["patches"] / before["patches"])
    growth = {
        name: round(math.log(last["seconds"][name] / before["seconds"][name]) / ratio, 2)
        for name in last["seconds"]
        if name in before["seconds"]
    }
    print(growth)
    write_result("attention_cost", {"window": WINDOW, "rounds": rounds, "rows": rows, "growth": growth})


if __name__ == "__main__":
    main()
