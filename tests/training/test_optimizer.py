"""Groups, schedules and Muon, against PyTorch's own and by hand."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from vitreous import UserError, ViT
from vitreous.config.objective import Mae
from vitreous.config.objective import Supervised as SupervisedConfig
from vitreous.config.train import Optimizer
from vitreous.objectives.mae import MaskedAutoencoder
from vitreous.objectives.supervised import Classification
from vitreous.training.step import Muon, decay_now, make_optimizers, orthogonalise, rate_factor, set_rates


def supervised(model):
    return Classification(model, SupervisedConfig())


def test_orthogonalising_brings_the_singular_values_near_one(subtests):
    for shape in ((12, 8), (8, 12), (10, 10)):
        with subtests.test(shape=shape):
            matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
            u, _, v = torch.linalg.svd(matrix, full_matrices=False)
            result = orthogonalise(matrix)
            values = torch.linalg.svdvals(result)
            assert values.min() > 0.6
            assert values.max() < 1.3
            assert torch.trace(u.T @ result @ v.T) / len(values) > 0.8  # in the directions of the matrix itself


@pytest.mark.filterwarnings("ignore")
def test_muon_steps_as_pytorchs_does_but_for_bfloat16(subtests):
    for shape in ((24, 8), (8, 24), (16, 16)):
        with subtests.test(shape=shape):
            draw = torch.Generator().manual_seed(0)
            start = torch.randn(shape, generator=draw)
            ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
            one = Muon([{"params": [ours]}], lr=0.02, weight_decay=0.1)
            other = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1)
            for _ in range(5):
                ours.grad = torch.randn(shape, generator=draw)
                theirs.grad = ours.grad.clone()
                one.step()
                other.step()
            moved = (ours - start).norm()
            assert (ours - theirs).norm() < 0.02 * moved


@pytest.mark.filterwarnings("ignore")
def test_muon_takes_q_k_and_v_for_three_matrices():
    """As PyTorch's does with three parameters: fused, the largest would take the directions of the others."""
    draw, model = torch.Generator().manual_seed(0), ViT("F/7@28", classes=3)
    qkv = model.blocks[1].attn.qkv.weight
    theirs = [torch.nn.Parameter(part.detach().clone()) for part in qkv.chunk(3)]
    other = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1)
    built = supervised(model)
    optimizers = make_optimizers(built, Optimizer("muon", muon_learning_rate=0.02, weight_decay=0.1))
    for _ in range(5):
        for parameter in built.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        qkv.grad[: len(qkv) // 3] *= 20  # q
        for part, own in zip(theirs, qkv.grad.chunk(3), strict=True):
            part.grad = own.clone()
        for optimizer in (other, *optimizers):
            optimizer.step()
    start = ViT("F/7@28", classes=3).blocks[1].attn.qkv.weight
    assert (qkv - torch.cat(theirs)).norm() < 0.02 * (qkv - start).norm()


def names_of(model, optimizer_config, objective=supervised):
    """{parameter name: its group} over all optimizers."""
    built = objective(model)
    names = {p: name.removeprefix("model.") for name, p in built.named_parameters()}
    return {
        names[p]: (type(optimizer).__name__, group)
        for optimizer in make_optimizers(built, optimizer_config)
        for group in optimizer.param_groups
        for p in group["params"]
    }


def test_biases_norms_tokens_and_positions_are_not_decayed():
    model = ViT("N/4@28", registers=2, classes=10)
    groups = names_of(model, Optimizer(weight_decay=0.3))
    decayed = {name for name, (_, group) in groups.items() if group["weight_decay"]}
    assert decayed == {n for n, p in model.named_parameters() if p.ndim > 1 and n.endswith("weight")}
    assert set(groups) == {name for name, _ in model.named_parameters()}
    assert not groups["pos_embed"][1]["decayed"]


def test_each_block_learns_slower_than_the_next():
    groups = names_of(ViT("N/4@28"), Optimizer(learning_rate=1.0, layer_decay=0.5))
    assert groups["head.weight"][1]["peak"] == 1.0
    assert groups["blocks.5.mlp.fc1.weight"][1]["peak"] == 0.5
    assert groups["blocks.0.mlp.fc1.weight"][1]["peak"] == 0.5**6
    assert groups["pos_embed"][1]["peak"] == 0.5**7


def test_muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest():
    groups = names_of(ViT("N/4@28"), Optimizer(name="muon"))
    muon = {name for name, (kind, _) in groups.items() if kind == "Muon"}
    assert len(muon) == 6 * 4
    assert all(name.startswith("blocks.") and name.endswith("weight") for name in muon)
    assert groups["head.weight"][0] == groups["blocks.0.norm1.weight"][0] == "AdamW"


def test_adamw_has_the_betas_of_its_configuration(subtests):
    """MAE's paper has 0.9 and 0.95. A configuration without the field has torch's, as ever."""
    for name, known in (("adamw", len(names_of(ViT("N/4@28"), Optimizer()))), ("muon", 0)):
        with subtests.test(name):
            groups = [
                group
                for kind, group in names_of(ViT("N/4@28"), Optimizer(name, betas=(0.9, 0.95))).values()
                if kind == "AdamW"
            ]
            assert len(groups) >= max(1, known)
            assert {group["betas"] for group in groups} == {(0.9, 0.95)}
    assert {group["betas"] for _, group in names_of(ViT("N/4@28"), Optimizer()).values()} == {(0.9, 0.999)}
    assert Optimizer(**json.loads(json.dumps(asdict(Optimizer(betas=(0.9, 0.95)))))) == Optimizer(betas=(0.9, 0.95))
    old = {name: value for name, value in asdict(Optimizer()).items() if name != "betas"}
    assert Optimizer(**old) == Optimizer()
    with pytest.raises(UserError, match="betas"):
        Optimizer(betas=(0.9, 1.0))


def test_a_decoder_learns_as_fast_as_what_follows_the_encoder():
    """Its blocks are called as the encoder's, but lie above them."""
    groups = names_of(
        ViT("N/4@28", classes=0),
        Optimizer(name="muon", learning_rate=1.0, muon_learning_rate=0.1, layer_decay=0.5),
        objective=lambda model: MaskedAutoencoder(model, Mae(decoder_width=32, decoder_depth=2, decoder_heads=2)),
    )
    for name, (kind, group) in groups.items():
        if name.startswith("decoder."):
            assert group["peak"] == (0.1 if kind == "Muon" else 1.0), name
    assert groups["decoder.blocks.0.attn.qkv.weight"][0] == "Muon"
    assert groups["blocks.0.attn.qkv.weight"][1]["peak"] == 0.1 * 0.5**6
    assert not groups["decoder.mask_token"][1]["decayed"]


def test_frozen_parameters_are_in_no_group():
    model = ViT("N/4@28")
    model.blocks[0].requires_grad_(False)
    assert not any(name.startswith("blocks.0.") for name in names_of(model, Optimizer()))


def test_the_rate_rises_then_falls(subtests):
    for decay, halfway in (("cosine", 0.5), ("linear", 0.5), ("constant", 1.0)):
        with subtests.test(decay=decay, halfway=halfway):
            c = Optimizer(warmup=0.2, decay=decay)
            factors = [rate_factor(c, step / 100, (step + 1) / 100) for step in range(100)]
            assert factors[0] == pytest.approx(0.05)
            assert max(factors) == pytest.approx(1.0, abs=0.01)
            assert factors[60] == pytest.approx(halfway)
            assert factors[:20] == sorted(factors[:20])
            assert factors[20:] == sorted(factors[20:], reverse=True)


def test_the_weight_decay_moves_along_half_a_cosine_and_spares_what_is_never_decayed():
    c = Optimizer(weight_decay=0.04, weight_decay_end=0.4)
    assert [round(decay_now(c, progress), 9) for progress in (0, 0.5, 1)] == [0.04, 0.22, 0.4]
    assert decay_now(Optimizer(weight_decay=0.3), 0.7) == 0.3
    for muon, wanted in ((None, 0.22), (0.5, 0.5), (0.0, 0.0)):
        own = replace(c, name="muon", muon_weight_decay=muon)
        optimizers = make_optimizers(supervised(ViT("N/4@28")), own)
        set_rates(optimizers, own, 1.0, 0.5)
        found = [{group["weight_decay"] for group in optimizer.param_groups} for optimizer in optimizers]
        assert [{round(decay, 9) for decay in decays} for decays in found] == [{wanted}, {0.0, 0.22}]
