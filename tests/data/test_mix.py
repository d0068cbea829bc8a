import torch

from vitreous.config.data import Augment
from vitreous.data.mix import mix


def batch(count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures of one value each, so that a share can be read from the pixels."""
    targets = torch.arange(count)
    return targets.float()[:, None, None, None].expand(-1, 3, 16, 16).clone(), targets


def test_mixup_blends_pictures_and_targets_by_the_same_share():
    images, targets = batch()
    shares = set()
    for step in range(30):
        mixed, soft = mix(images, targets, 6, Augment(mixup=0.8), seed=0, epoch=0, step=step)
        torch.testing.assert_close(soft.sum(1), torch.ones(6))
        torch.testing.assert_close(mixed[:, 0, 0, 0], soft @ torch.arange(6.0))
        assert (soft > 0).sum(1).max() == 2
        assert mixed.shape == images.shape
        shares.add(round(float(soft.diagonal()[0]), 4))
    assert len(shares) == 30
    assert images.equal(batch()[0])


def test_cutmix_pastes_one_rectangle_and_counts_its_pixels():
    images, targets = batch()
    for step in range(30):
        mixed, soft = mix(images, targets, 6, Augment(cutmix=1.0), seed=0, epoch=0, step=step)
        torch.testing.assert_close(mixed.mean((1, 2, 3)), soft @ torch.arange(6.0))
        foreign = mixed[:, 0] != targets[:, None, None]
        assert all(len(set(picture[hole].tolist())) <= 1 for picture, hole in zip(mixed[:, 0], foreign, strict=True))
        rows, columns = foreign.any(2).sum(1), foreign.any(1).sum(1)
        assert (foreign.flatten(1).sum(1) == rows * columns).all()
    assert images.equal(batch()[0])


def test_one_of_both_for_each_batch_as_a_function_of_seed_epoch_and_step():
    images, targets = batch()
    augment = Augment(mixup=0.8, cutmix=1.0)
    cut = 0
    for step in range(100):
        mixed, soft = mix(images, targets, 6, augment, seed=1, epoch=2, step=step)
        again = mix(images, targets, 6, augment, seed=1, epoch=2, step=step)
        assert mixed.equal(again[0])
        assert soft.equal(again[1])
        cut += bool((mixed == mixed.round()).all())
    assert 30 < cut < 70
    first = [
        mix(images, targets, 6, augment, seed=s, epoch=e, step=t)[1]
        for s, e, t in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    assert len({soft.numpy().tobytes() for soft in first}) == 4


def test_a_batch_of_one_stays_itself():
    images, targets = batch(1)
    mixed, soft = mix(images, targets, 3, Augment(mixup=1.0), seed=0, epoch=0, step=0)
    assert mixed.equal(images)
    assert soft.tolist() == [[1.0, 0.0, 0.0]]
