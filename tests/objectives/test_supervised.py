"""Learning from labels: the loss by hand, and that a batch in parts teaches what the whole one would."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from support.in_parts import gradients
from vitreous import UserError, ViT, ViTConfig
from vitreous.config.data import Preprocess
from vitreous.config.objective import Supervised as Settings
from vitreous.config.train import Optimizer, Training
from vitreous.data.batch import Batch
from vitreous.distributed.world import World
from vitreous.objectives.build import build_objective
from vitreous.objectives.objective import Setting
from vitreous.objectives.supervised import Classification, balance
from vitreous.training.step import Learner, train_step

MODEL = ViTConfig(width=16, depth=3, heads=2, mlp_width=32, patch=4, image_size=(16, 16), classes=3)
SCHEDULE = ((0.5, 0.5),)
WEIGHT = torch.tensor([0.3, 1.0, 4.0])
TARGETS = torch.tensor([0, 0, 2, 1, 0, 2, 2, 1, 0, 1, 2])


def batch(targets=TARGETS, epoch=0, dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    return Batch.of(torch.randn(len(TARGETS), 3, 16, 16, generator=draw).to(dtype), targets, epoch=epoch)


def build(settings=None, weight=None, **model):
    network = ViT(replace(MODEL, **model), seed=1)
    with torch.no_grad():
        network.head.weight.normal_(std=0.5, generator=torch.Generator().manual_seed(1))  # it starts at zero
    objective = Classification(network, settings or Settings()).train()
    objective.class_weight = weight
    return objective


def logs(scores):
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def scores_of(objective, seen):
    with torch.no_grad():
        return objective.model(seen.images).double().numpy()


def test_the_loss_is_the_weighted_mean_of_cross_entropies():
    objective, seen = build(weight=WEIGHT), batch()
    each = -logs(scores_of(objective, seen))[np.arange(11), TARGETS.numpy()]
    own = WEIGHT.double().numpy()[TARGETS.numpy()]
    loss, metrics = objective(seen, 0.0)
    assert loss.item() == pytest.approx((own * each).sum() / own.sum(), abs=1e-6)
    assert objective.weigh(seen) == pytest.approx(own.sum())
    right = scores_of(objective, seen).argmax(axis=1) == TARGETS.numpy()
    assert metrics["accuracy"].item() == pytest.approx(right.mean())


def test_mixed_targets_and_smoothing():
    soft = torch.rand(11, 3, generator=torch.Generator().manual_seed(3))
    soft /= soft.sum(dim=1, keepdim=True)
    objective, seen = build(Settings(label_smoothing=0.2)), batch(soft)
    target = 0.8 * soft.double().numpy() + 0.2 / 3
    wanted = -(target * logs(scores_of(objective, seen))).sum(axis=1).mean()
    loss, metrics = objective(seen, 0.0)
    assert loss.item() == pytest.approx(wanted, abs=1e-6)
    assert objective.weigh(seen) == 11
    right = scores_of(objective, seen).argmax(axis=1) == soft.numpy().argmax(axis=1)
    assert metrics["accuracy"].item() == pytest.approx(right.mean())


def test_soft_targets_with_class_weights():
    """Each class's share of a target counts by the weight of the class, and each image alike."""
    soft = torch.rand(11, 3, generator=torch.Generator().manual_seed(4))
    soft /= soft.sum(dim=1, keepdim=True)
    objective, seen = build(weight=WEIGHT), batch(soft)
    weighted = WEIGHT.double().numpy() * soft.double().numpy()
    wanted = -(weighted * logs(scores_of(objective, seen))).sum(axis=1).mean()
    assert objective(seen, 0.0)[0].item() == pytest.approx(wanted, abs=1e-6)


SOFT = torch.nn.functional.one_hot(TARGETS, 3).float().lerp(torch.full((11, 3), 1 / 3), 0.3)


def test_uneven_parts_teach_what_the_whole_batch_does(subtests):
    for targets, smoothing, weight in product((TARGETS, SOFT), (0.0, 0.1), (None, WEIGHT)):
        with subtests.test(targets=targets, smoothing=smoothing, weight=weight):
            objective = build(Settings(smoothing), weight).double()
            seen = batch(targets if targets.ndim == 1 else targets.double(), dtype=torch.float64)
            single = seen.split(11)
            uneven = [single[:7], single[7:8], single[8:]]
            parts = [
                Batch.of(*(torch.cat([getattr(one, name) for one in rows]) for name in ("images", "targets", "index")))
                for rows in uneven
            ]
            assert [len(part.index) for part in parts] == [7, 1, 3]
            loss, whole = gradients(objective, [seen])
            for given in (parts, seen.split(3)):
                total, found = gradients(objective, given, weighed=objective.weigh(seen))
                assert total == pytest.approx(loss, abs=1e-9)
                torch.testing.assert_close(found, whole, atol=1e-9, rtol=0)


def test_a_step_is_the_same_for_any_micro_batch(subtests):
    """Patches that are left out and stochastic depth included: they follow each image into its part."""
    for weight in (None, WEIGHT):
        with subtests.test(weight=weight):
            settings = Settings(0.1, class_weights=weight is not None, keep_schedule=SCHEDULE)
            found = {}
            for micro_batch in (None, 3, 1):
                training = Training(
                    replace(MODEL, drop_path=0.5),
                    Preprocess(size=(16, 16)),
                    settings,
                    optimizer=Optimizer(clip=None),
                    micro_batch=micro_batch,
                )
                objective = build(settings, weight, drop_path=0.5)
                learner, seen = Learner(objective, training, World()), []

                def check(loss, norm, objective=objective, seen=seen):
                    seen += [loss, norm, torch.cat([p.grad.flatten() for p in objective.parameters()])]

                record = train_step(learner, batch(epoch=2), number=5, progress=0.1, after=0.2, check=check)
                found[micro_batch] = [record["accuracy"], *seen]
            *numbers, gradient = found[None]
            for micro_batch in (3, 1):
                *others, other = found[micro_batch]
                assert others == pytest.approx(numbers, rel=1e-6)
                assert (other - gradient).norm() < 1e-6 * gradient.norm()


def test_a_step_waits_for_its_device_once():
    """No number is taken from a tensor by itself: on a GPU, each would wait for all that was asked before."""

    class Numbers(TorchDispatchMode):
        found = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.found += function is torch.ops.aten._local_scalar_dense.default
            return function(*args, **(kwargs or {}))

    training = Training(MODEL, Preprocess(size=(16, 16)), micro_batch=3)
    learner = Learner(build(), training, World())
    with Numbers() as numbers:
        record = train_step(learner, batch(), number=5, progress=0.1, after=0.2)
    assert set(record) == {"loss", "accuracy", "norm", "learning_rate"}
    assert numbers.found == 0


def kept(objective, seen, progress=0.1):
    """The patches that a step looks at, (B, M); None for all."""
    found = []
    hook = objective.model.register_forward_pre_hook(
        lambda _, __, more: found.append(more.get("keep_ids")), with_kwargs=True
    )
    objective(seen, progress)
    hook.remove()
    (one,) = found
    return one


def test_the_patches_that_are_kept_follow_from_the_image_alone():
    objective = build(Settings(keep_schedule=SCHEDULE))
    whole = kept(objective, batch())
    assert whole.shape == (11, 8)
    assert all(len(set(row)) == 8 for row in whole.tolist())
    assert len({tuple(sorted(row)) for row in whole.tolist()}) > 8
    for parts in (2, 4, 11):
        assert torch.cat([kept(objective, part) for part in batch().split(parts)]).equal(whole)
    assert not kept(objective, batch(epoch=1)).equal(whole)
    assert kept(objective, batch(), progress=0.5) is None


def test_classes_count_alike_however_many_images_they_have():
    labels = torch.tensor([0] * 6 + [1] * 3 + [3])
    weight = balance(labels, 4)
    assert weight.tolist() == pytest.approx([10 / 18, 10 / 9, 0, 10 / 3])
    shares = torch.zeros(4).index_add_(0, labels, weight[labels])
    assert shares.tolist() == pytest.approx([10 / 3, 10 / 3, 0, 10 / 3])
    setting = Setting(labels=TARGETS)
    built = build_objective(ViT(MODEL), Settings(class_weights=True), setting)
    assert built.class_weight.equal(balance(TARGETS, 3))
    assert build_objective(ViT(MODEL), Settings(), setting).class_weight is None
    assert "class_weight" not in built.state_dict()  # it follows from the data


def test_evaluation_is_plain_whatever_is_trained_with():
    objective = build(Settings(0.3, keep_schedule=SCHEDULE), WEIGHT, drop_path=0.5)
    scores = scores_of(objective.eval(), batch())
    found = objective.train().evaluate(batch().split(3))
    accuracy = (scores.argmax(axis=1) == TARGETS.numpy()).mean()
    assert found["accuracy"] == pytest.approx(accuracy)
    assert found["standard_error"] == pytest.approx((accuracy * (1 - accuracy) / 11) ** 0.5)
    assert found["loss"] == pytest.approx(-logs(scores)[np.arange(11), TARGETS.numpy()].mean(), abs=1e-6)


def test_a_keep_schedule_wants_a_network_of_patches():
    class Other(torch.nn.Module):
        config = MODEL

    with pytest.raises(UserError, match="keep_schedule"):
        Classification(Other(), Settings(keep_schedule=SCHEDULE))
