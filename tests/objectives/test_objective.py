"""What every objective may leave to its base: averages of networks, evaluation, what each parameter is."""

import pytest
import torch
from torch import nn

from vitreous import ViT, ViTConfig
from vitreous.config.objective import Dino, Mae
from vitreous.config.objective import Supervised as Labels
from vitreous.data.batch import Batch
from vitreous.objectives.build import build_objective
from vitreous.objectives.dino import SelfDistillation
from vitreous.objectives.mae import MaskedAutoencoder
from vitreous.objectives.objective import Objective, Setting, move_average
from vitreous.objectives.supervised import Classification

MODEL = ViTConfig(width=16, depth=2, heads=2, mlp_width=32, patch=4, image_size=(16, 16), classes=0)
MAE = Mae(decoder_width=16, decoder_depth=3, decoder_heads=2)


def network(value, steps):
    """A linear layer and a BatchNorm, all of one value, after so many batches."""
    made = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    for tensor in made.state_dict().values():
        tensor.fill_(value)
    made[1].num_batches_tracked.fill_(steps)
    return made


def test_an_average_moves_parameters_and_buffers_and_copies_whole_numbers():
    average, now = network(1.0, 3), network(5.0, 7)
    move_average(average, now, 0.25)
    state = average.state_dict()
    assert set(state) == {
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked",
    }  # fmt: skip
    for name, tensor in state.items():
        expected = 7 if name == "1.num_batches_tracked" else 2.0  # 1 + (5 - 1) / 4
        assert (tensor == expected).all(), name
    assert state["1.num_batches_tracked"].dtype == torch.int64
    assert all((tensor == 5).all() or tensor == 7 for tensor in now.state_dict().values())


def test_an_average_of_frozen_parameters_needs_no_gradient():
    average, now = network(1.0, 0).requires_grad_(False), network(2.0, 0)
    move_average(average, now, 0.5)
    assert (average[0].weight == 1.5).all()
    assert not average[0].weight.requires_grad
    assert average[0].weight.grad_fn is None


class Mean(Objective):
    """Its loss is the mean of the images."""

    def forward(self, batch, progress):
        return batch.images.mean(), {}

    def weigh(self, batch):
        return batch.targets.sum().item()


def test_evaluation_weighs_each_batch_as_the_objective_does():
    images = torch.tensor([1.0, 2.0, 6.0])[:, None, None, None]
    batches = Batch.of(images, torch.tensor([1, 2, 5])).split(3)
    assert Mean().evaluate(iter(batches)) == {"loss": pytest.approx((1 * 1 + 2 * 2 + 5 * 6) / 8)}


def test_images_set_aside_have_the_loss_of_all_of_them_in_one_batch():
    objective = build_objective(ViT(MODEL), MAE, Setting(seed=1))
    images = torch.randn(7, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    whole = objective.evaluate([Batch.of(images)])
    assert objective.evaluate(Batch.of(images).split(3)) == {"loss": pytest.approx(whole["loss"], abs=1e-6)}
    assert not objective.training


def test_each_kind_builds_its_objective():
    seen = {
        Classification: Labels(),
        MaskedAutoencoder: MAE,
        SelfDistillation: Dino(hidden=8, bottleneck=4, prototypes=5),
    }
    for kind, config in seen.items():
        assert type(build_objective(ViT(MODEL), config, Setting())) is kind


def test_what_is_built_around_a_network_learns_like_its_last_layer():
    """So layer decay does not take a decoder's first block for the encoder's."""
    objective = build_objective(ViT(MODEL), MAE, Setting())
    roles = objective.parameter_groups()
    assert roles.keys() == dict(objective.named_parameters()).keys()
    around = {name: role for name, role in roles.items() if name.startswith("decoder.")}
    assert {role.layer for role in around.values()} == {MODEL.depth}
    matrices = {name for name, role in around.items() if role.kind == "matrix"}
    inner = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")
    assert matrices == {f"decoder.blocks.{i}.{name}" for i in range(3) for name in inner}
    assert {name for name, role in around.items() if role.decayed} == {
        *matrices, "decoder.embed.weight", "decoder.pred.weight",
    }  # fmt: skip
    assert [roles[f"model.blocks.{i}.mlp.fc1.weight"].layer for i in range(2)] == [0, 1]
    assert roles["model.patch_embed.proj.weight"].layer == -1


def test_both_networks_of_a_student_and_its_teacher_have_roles():
    roles = build_objective(ViT(MODEL), Dino(hidden=8, bottleneck=4, prototypes=5), Setting()).parameter_groups()
    for place in ("student", "model"):
        assert roles[f"{place}.blocks.1.attn.qkv.weight"] == (1, "matrix", True)
    assert roles["student_head.prototypes"].layer == MODEL.depth
