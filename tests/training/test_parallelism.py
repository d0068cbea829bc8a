"""What a training step is said to take, against what torch really takes."""

import json
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from vitreous import UserError, ViT, models, preset
from vitreous.model.family import count_parameters
from vitreous.model.vit_cost import count_checkpointed_bytes
from vitreous.training.parallelism import (
    EFFICIENT_BATCH,
    PARALLELISMS,
    RESERVED_FRACTION,
    Parallelism,
    activation_bytes,
    block_parameters,
    checkpointed_bytes,
    fit_on_gpus,
    step_memory,
)

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "scale_table.json"
DDP, SHARD = Parallelism(), Parallelism(shard=True)


def kept_bytes(network, images):
    """What autograd keeps of a forward pass, weights aside."""
    own = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()  # held, so that no address means two
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(torch.zeros(images, 3, *network.config.image_size))
    return sum(storage.nbytes() for address, storage in kept.items() if address not in own)


def test_activations_are_what_autograd_keeps(subtests):
    """Of one more image: what is kept once for all, such as weights in bfloat16, is the same for any batch."""
    for mixed, name in product((False, True), ("Ti/16", "S/16")):
        with subtests.test(mixed=mixed, name=name):
            network = ViT(name)
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                kept = kept_bytes(network, 3) - kept_bytes(network, 2)
            assert step_memory(preset(name), DDP, 1, mixed=mixed).activations == pytest.approx(kept, rel=0.03)


def test_checkpointed_blocks_keep_their_input(subtests):
    """Before the backward pass; in it comes what one block keeps."""
    for mixed in (False, True):
        with subtests.test(mixed=mixed):
            network = ViT("Ti/16")
            for block in network.blocks:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                kept = kept_bytes(network, 3) - kept_bytes(network, 2)
            plain, saving = (
                step_memory(preset("Ti/16"), Parallelism(activation_checkpointing=way), 1, mixed=mixed)
                for way in (False, True)
            )
            shallower = step_memory(preset("Ti/16", depth=11), DDP, 1, mixed=mixed)
            block = plain.activations - shallower.activations
            assert saving.activations - block == pytest.approx(kept, rel=0.15 if mixed else 0.01)


def test_the_formula_agrees_with_what_was_measured(subtests):
    """On a processor in float32, within 15 % or 75 MB: the committed file has what each process held at most.

    Sharded, a processor keeps the memory of what it gathered, which a GPU's allocator uses again: up to twice as much.
    """
    for row in json.loads(RESULTS.read_text())["measured"]:
        with subtests.test(row=row):
            parallelism = next(one for one in PARALLELISMS if str(one) == row["way"])
            found = step_memory(preset(row["model"]), parallelism, row["processes"], mixed=False)
            computed, measured = found.total(row["batch"]), row["measured_bytes"]
            if parallelism.shard:
                assert computed <= measured < 2.1 * computed
            else:
                assert computed == pytest.approx(measured, rel=0.15, abs=75e6)


def test_by_hand():
    """Weights, gradients and two moments of 4 bytes each; copies for autocast of 2; a share of it with several GPUs."""
    config = replace(preset("B/16"), classes=1000)
    count = count_parameters(config)
    alone, shared = step_memory(config, DDP, 8), step_memory(config, SHARD, 8)
    assert alone.weights + alone.gradients + alone.optimizer + alone.temporary == (4 + 4 + 8 + 2) * count
    assert shared.weights + shared.gradients + shared.optimizer == 16 * count / 8
    assert alone.largest_batch(80e9) == int(((1 - RESERVED_FRACTION) * 80e9 - 18 * count) / alone.image)
    assert alone.largest_batch(1e6) == 0


def test_what_to_choose():
    """The simplest way that keeps a GPU busy; several parts of a step rather than computing blocks twice."""
    config = preset("g/14")
    roomy, tight, tiny = (fit_on_gpus(config, 8, round(size * 1e9)) for size in (80, 24, 1))
    assert roomy.choice == "DDP"
    assert roomy.largest_batch["DDP"] >= EFFICIENT_BATCH
    assert tight.largest_batch["DDP"] < EFFICIENT_BATCH <= tight.largest_batch["shard"]
    assert tight.choice == "shard"
    assert fit_on_gpus(config, 8, 16 * 10**9).choice == "shard, activation_checkpointing"
    assert tiny.choice is None
    large = fit_on_gpus(preset("B/16"), 8, 24 * 10**9, batch_size=8192)
    assert large.choice == "DDP"
    assert large.micro_batch == large.largest_batch["DDP"] < 1024
    assert fit_on_gpus(preset("B/16"), 8, 24 * 10**9, batch_size=64).micro_batch is None


def test_a_single_block_is_counted_too():
    """A block of width D has 12 D^2 weights, 9 D of biases and 4 D of norms, however many there are."""
    config = preset("Ti/16", depth=1)
    assert block_parameters(config) == block_parameters(preset("Ti/16"))
    assert block_parameters(config) == 12 * 192**2 + 13 * 192
    assert fit_on_gpus(config, 8, 80 * 10**9).choice == "DDP"


def test_a_block_that_is_computed_again_has_all_tokens_where_later_ones_merge():
    configs = [preset("Ti/16", merge=merge) for merge in (0, 15)]
    again = [checkpointed_bytes(config, mixed=False) - count_checkpointed_bytes(config) for config in configs]
    plain, shallower = (activation_bytes(preset("Ti/16", depth=depth), mixed=False) for depth in (12, 11))
    assert again[0] == again[1] == plain - shallower


def test_gradients_that_wait_for_the_last_part_are_counted():
    """Sharded, a process keeps those of all weights from part to part; a step that fits at once needs no parts."""
    config = preset("g/14")
    count = count_parameters(config)
    whole, part = (step_memory(config, SHARD, 8, accumulates=accumulates) for accumulates in (False, True))
    assert part.total(1) - whole.total(1) == 4 * count
    assert step_memory(config, DDP, 8, accumulates=True) == step_memory(config, DDP, 8)
    large, small = (fit_on_gpus(config, 8, 24 * 10**9, batch_size=8 * each) for each in (128, 32))
    assert small.largest_batch["shard"] == whole.largest_batch(24e9) >= 32
    assert large.largest_batch["shard"] == part.largest_batch(24e9)


def test_models_says_it():
    rows = models(["B/16", "bit-r50x1"], gpus=8, memory="80GB")
    assert [row.fit.choice for row in rows] == ["DDP", "DDP"]
    assert rows[1].fit.image_checkpointed is None
    assert models(["B/16"])[0].fit is None
    for asked in ({"gpus": 8}, {"memory": "80GB"}, {"batch_size": 64}, {"gpus": 0, "memory": "80GB"}):
        with pytest.raises(UserError):
            models(["B/16"], **asked)
    with pytest.raises(UserError, match="memory='much'"):
        models(["B/16"], gpus=8, memory="much")
