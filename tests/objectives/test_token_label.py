"""Token labelling against the paper's formula, written out in NumPy."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from support.in_parts import gradients
from vitreous import UserError, ViT, ViTConfig
from vitreous.config.bit import BiTConfig
from vitreous.config.objective import TokenLabel
from vitreous.config.stem import ConvStem
from vitreous.data.batch import Batch
from vitreous.model.family import build_network
from vitreous.model.keyed_random import keyed_uniform
from vitreous.objectives.build import build_objective
from vitreous.objectives.objective import Setting
from vitreous.objectives.supervised import KEEP_STREAM
from vitreous.objectives.token_label import token_cross_entropy

MODEL = ViTConfig(width=16, depth=2, heads=2, mlp_width=32, patch=4, image_size=(16, 16), classes=3)
COUNT = 6


LABELS = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2])
"""Of all training images: class weights are 10 / (3 x 5), 10 / (3 x 3) and 10 / (3 x 2)."""
CLASS_WEIGHTS = np.array([2 / 3, 10 / 9, 5 / 3])


def build(settings=None, **model):
    objective = build_objective(ViT(replace(MODEL, **model), seed=1), settings or TokenLabel(), Setting(labels=LABELS))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for layer in (objective.model.head, objective.patch_classifier):
            layer.weight.normal_(std=0.5, generator=generator)  # they start at zero
            layer.bias.normal_(std=0.5, generator=generator)
    return objective.train()


def batch(soft=False):
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(COUNT) % 3
    if soft:
        targets = torch.rand(COUNT, 3, generator=generator).softmax(dim=1)
    tokens = torch.rand(COUNT, 16, 3, generator=generator)
    plain = Batch.of(torch.randn(COUNT, 3, 16, 16, generator=generator), targets)
    return replace(plain, token_targets=tokens / tokens.sum(dim=2, keepdim=True))


def logs(scores):
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


def numbers(layer):
    return layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()


def literal(objective, seen, beta, keep=None):
    """H(X_cls, y_cls) + beta / N sum_i H(X_i, y_i), the mean over images (equation 5 of the paper)."""
    model = objective.model
    with torch.no_grad():
        z, layout = model.embed(seen.images, keep, keys=seen.keys)
        tokens = model.encode(z, layout, keys=seen.keys)
        scores = logs(model(seen.images, keys=seen.keys, keep_ids=keep).double().numpy())
    weight, bias = numbers(objective.patch_classifier)
    patches = logs(tokens[:, layout.prefix :].double().numpy() @ weight.T + bias)
    hard = seen.targets.ndim == 1
    truth = np.eye(3)[seen.targets.numpy()] if hard else seen.targets.double().numpy()
    total = 0.0
    for b in range(COUNT):
        total -= (truth[b] * scores[b]).sum()
        cells = range(16) if keep is None else keep[b].tolist()
        for place, cell in enumerate(cells):
            total -= beta / len(cells) * (seen.token_targets[b, cell].double().numpy() * patches[b, place]).sum()
    return total / COUNT


def test_the_loss_is_that_of_the_paper(subtests):
    for soft, beta in product((False, True), (0.5, 2.0)):
        with subtests.test(soft=soft, beta=beta):
            objective, seen = build(TokenLabel(token_weight=beta)), batch(soft)
            loss, metrics = objective(seen, 0.0)
            assert loss.item() == pytest.approx(literal(objective, seen, beta), abs=1e-6)
            assert metrics["token_loss"].item() > 0
            assert 0 <= metrics["token_agreement"].item() <= 1


def test_of_any_vit_or_hybrid(subtests):
    for model in (
        {"pool": "mean", "class_token": False},
        {"registers": 3},
        {"pool": "class+mean"},
        {"stem": ConvStem((8, 8))},
        {"distilled": True},
        {"norm": "after"},
    ):
        with subtests.test(model=model):
            objective, seen = build(**model), batch()
            loss, _ = objective(seen, 0.0)
            assert loss.item() == pytest.approx(literal(objective, seen, 0.5), abs=1e-6)
            loss.backward()
            assert all(parameter.grad is not None for parameter in objective.parameters())


def test_a_norm_after_the_mean_is_applied_to_each_patch():
    objective, seen = build(pool="mean", class_token=False, norm_after_pool=True), batch()
    with torch.no_grad():
        z, layout = objective.model.embed(seen.images)
        tokens = objective.model.fc_norm(objective.model.encode(z, layout)).double().numpy()
        label = -logs(objective.model(seen.images).double().numpy())[np.arange(COUNT), seen.targets.numpy()].mean()
    weight, bias = numbers(objective.patch_classifier)
    each = -(seen.token_targets.double().numpy() * logs(tokens @ weight.T + bias)).sum(2).mean()
    assert objective(seen, 0.0)[0].item() == pytest.approx(label + 0.5 * each, abs=1e-6)


def test_with_a_keep_schedule_the_patches_that_are_looked_at_have_their_own_labels():
    objective, seen = build(TokenLabel(keep_schedule=((0.5, 0.375),))), batch()
    keep = keyed_uniform(seen.keys, KEEP_STREAM, 16).argsort(dim=1, stable=True)[:, :6]
    assert objective(seen, 0.2)[0].item() == pytest.approx(literal(objective, seen, 0.5, keep), abs=1e-6)
    assert objective(seen, 0.7)[0].item() == pytest.approx(literal(objective, seen, 0.5), abs=1e-6)


def test_patch_dropout_takes_the_labels_along():
    objective, seen = build(patch_dropout=0.5), batch()
    with torch.no_grad():
        _, layout = objective.model.embed(seen.images, keys=seen.keys)
    assert layout.keep_ids.shape == (COUNT, 8)
    assert objective(seen, 0.0)[0].item() == pytest.approx(literal(objective, seen, 0.5, layout.keep_ids), abs=1e-6)


def test_class_weights_weigh_both_terms_and_smoothing_is_the_labels_alone(subtests):
    """sum_b w_b (H(X, smooth y) + beta / N sum_i H(X_i, y_i)), over sum_b w_b; of mixed labels, over B.

    In cross-entropy each class of a target has its own weight; the tokens' term of an image has those of its label.
    """
    for soft in (False, True):
        with subtests.test(soft=soft):
            objective, seen = build(TokenLabel(label_smoothing=0.1, class_weights=True)), batch(soft)
            with torch.no_grad():
                z, layout = objective.model.embed(seen.images)
                tokens = objective.model.encode(z, layout)[:, layout.prefix :].double().numpy()
                scores = logs(objective.model(seen.images).double().numpy())
            weight, bias = numbers(objective.patch_classifier)
            patches = logs(tokens @ weight.T + bias)
            truth = seen.targets.double().numpy() if soft else np.eye(3)[seen.targets.numpy()]
            label, token, weights = 0.0, 0.0, 0.0
            for b in range(COUNT):
                own = sum(truth[b, k] * CLASS_WEIGHTS[k] for k in range(3))
                label -= sum((0.9 * truth[b, k] + 0.1 / 3) * CLASS_WEIGHTS[k] * scores[b, k] for k in range(3))
                token -= own * (seen.token_targets[b].double().numpy() * patches[b]).sum() / 16
                weights += 1 if soft else own
            loss, metrics = objective(seen, 0.0)
            assert loss.item() == pytest.approx((label + 0.5 * token) / weights, abs=1e-6)
            assert metrics["token_loss"].item() == pytest.approx(token / weights, abs=1e-6)


def test_uneven_parts_teach_what_the_whole_batch_does(subtests):
    for soft, weighted in product((False, True), (False, True)):
        with subtests.test(soft=soft, weighted=weighted):
            objective, plain = build(TokenLabel(class_weights=weighted)).double(), batch(soft)
            targets = plain.targets.double() if soft else plain.targets
            seen = replace(Batch.of(plain.images.double(), targets), token_targets=plain.token_targets.double())
            whole, parts = gradients(objective, [seen]), gradients(objective, seen.split(4))
            assert parts[0] == pytest.approx(whole[0], abs=1e-9)
            torch.testing.assert_close(parts[1], whole[1], atol=1e-9, rtol=1e-7)


def test_logarithms_are_not_taken_in_half_precision():
    scores = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(3)).bfloat16()
    targets = batch().token_targets[:2, :5]
    with torch.autocast("cpu", torch.bfloat16):
        found = token_cross_entropy(scores, targets)
    expected = -(targets.double().numpy() * logs(scores.double().numpy())).sum(2).mean(1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_classifier_of_patches_starts_at_zero_and_is_saved_beside_the_network():
    objective = build_objective(ViT(MODEL, seed=1), TokenLabel(), Setting())
    assert not any(parameter.any() for parameter in objective.patch_classifier.parameters())
    assert objective.extras() == {"patch_classifier": objective.patch_classifier}
    assert not [name for name in objective.model.state_dict() if "patch_classifier" in name]
    assert set(objective.parameter_groups()) == {name for name, _ in objective.named_parameters()}


def test_evaluation_asks_the_network_alone():
    objective, seen = build(), batch()
    plain = Batch.of(seen.images, seen.targets)
    found = objective.evaluate([plain])
    with torch.no_grad():
        right = (objective.model(seen.images).argmax(1) == seen.targets).float().mean().item()
    assert found["accuracy"] == pytest.approx(right)


def test_a_network_without_patches_is_refused():
    network = build_network(BiTConfig(depths=(1,), width=0.5, image_size=(32, 32), classes=3))
    with pytest.raises(UserError, match="'bit'"):
        build_objective(network, TokenLabel(), Setting())
