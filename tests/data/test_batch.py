"""Splitting and moving a batch: every field by its name, none in another's place."""

from dataclasses import dataclass, fields

import torch

from vitreous.data.batch import Batch, ViewBatch
from vitreous.data.rng import sample_keys


def numbered(*shape, start=0.0, dtype=torch.float32):
    """Numbers that occur nowhere else, so that a tensor in a wrong place is seen."""
    return (start + torch.arange(torch.Size(shape).numel())).reshape(shape).to(dtype)


def views(count, each, side, start):
    return ViewBatch(
        numbered(count, each, 3, side, side, start=start),
        numbered(count, each, 4, start=start + 0.25),
        torch.arange(count * each).reshape(count, each) % 3 == 0,
    )


def batch(count=10, kind=Batch, **more):
    return kind(
        {"global": views(count, 2, 4, 1e4), "local": views(count, 3, 2, 2e4)},
        numbered(count, start=100, dtype=torch.int64),
        numbered(count, start=200, dtype=torch.int64),
        numbered(count, start=300, dtype=torch.int64),
        partner=numbered(count, start=500, dtype=torch.int64),
        lam=numbered(count, start=600.5),
        token_targets=numbered(count, 4, 3, start=3e4),
        **more,
    )


def tensors(one):
    """Every tensor of a batch by its full name."""
    found = {}
    for field in fields(one):
        value = getattr(one, field.name)
        if isinstance(value, dict):
            for name, view in value.items():
                found |= {f"{field.name}.{name}.{inner.name}": getattr(view, inner.name) for inner in fields(view)}
        else:
            found[field.name] = value
    return found


def test_parts_are_nearly_equal_and_together_the_whole(subtests):
    for parts, sizes in ((1, [10]), (2, [5, 5]), (3, [4, 3, 3]), (4, [3, 3, 2, 2]), (10, [1] * 10), (25, [1] * 10)):
        with subtests.test(parts=parts):
            whole = batch()
            found = whole.split(parts)
            assert [len(part.index) for part in found] == sizes
            expected = tensors(whole)
            assert set(expected) == {
                "views.global.images", "views.global.box", "views.global.flipped",
                "views.local.images", "views.local.box", "views.local.flipped", "targets", "index", "keys",
                "partner", "lam", "token_targets",
            }  # fmt: skip
            for name, tensor in expected.items():
                assert torch.cat([tensors(part)[name] for part in found]).equal(tensor), name
            assert all(list(part.views) == ["global", "local"] for part in found)
            for part in found:  # rows stay together
                rows = part.index - 200
                for name, tensor in tensors(part).items():
                    assert tensor.equal(expected[name][rows]), name


def test_moving_moves_every_field_and_changes_none():
    moved = batch().to(torch.device("meta"))
    for name, tensor in tensors(moved).items():
        assert tensor.device.type == "meta", name
        assert (tensor.shape, tensor.dtype) == (tensors(batch())[name].shape, tensors(batch())[name].dtype)
    stayed = batch().to(torch.device("cpu"))
    for name, tensor in tensors(stayed).items():
        assert tensor.equal(tensors(batch())[name]), name


@dataclass(frozen=True)
class Teased(Batch):
    """A batch with one more field, as an objective of somebody else's may want it."""

    teachers: torch.Tensor


def test_a_new_field_is_split_and_moved_like_the_others():
    more = batch(5, Teased, teachers=numbered(5, 7, start=400))
    first, second = more.split(2)
    assert isinstance(first, Teased)
    assert first.teachers.equal(more.teachers[:3])
    assert second.teachers.equal(more.teachers[3:])
    assert second.keys.equal(more.keys[3:])
    assert more.to(torch.device("meta")).teachers.device.type == "meta"


def test_a_batch_of_whole_images():
    images = torch.rand(4, 3, 8, 8)
    plain = Batch.of(images)
    assert plain.images.equal(images)
    assert plain.targets.tolist() == [-1] * 4
    assert plain.index.tolist() == [0, 1, 2, 3]
    view = plain.views["image"]
    assert view.box.tolist() == [[[0.0, 0.0, 1.0, 1.0]]] * 4
    assert view.flipped.tolist() == [[False]] * 4
    index = torch.tensor([9, 2, 7, 2])
    given = Batch.of(images, torch.tensor([1, 0, 2, 1]), index, seed=3, epoch=5)
    assert given.targets.tolist() == [1, 0, 2, 1]
    assert given.keys.tolist() == sample_keys(3, 5, index.numpy()).tolist()
    assert given.keys[1] == given.keys[3]
    assert len({*given.keys.tolist(), *plain.keys.tolist()}) == 3 + 4
