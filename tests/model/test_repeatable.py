"""The same step twice has the same gradients to the bit, with as many threads as a person's machine uses."""

import pytest
import torch

from vitreous import ViT


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("position", ["learned-1d", "learned-2d", "relative"])
def test_gradients_of_chosen_patches_repeat_to_the_bit(position, two_threads):
    model = ViT("Ti/16@160", classes=5, position=position, depth=1)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(64, 3, 160, 160, generator=draw)
    keep = torch.rand(64, 100, generator=draw).argsort(dim=1)[:, :50]
    found = []
    for _ in range(8):
        model.zero_grad()
        model(images, keep_ids=keep).square().mean().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for again in found[1:]:
        assert [name for name, gradient in again.items() if not torch.equal(gradient, found[0][name])] == []
