"""Networks of the convolutional families with every number random, small ones of each, and what all must show."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vitreous import UserError
from vitreous.config.bit import BiTConfig
from vitreous.config.efficientnet import EfficientNetConfig
from vitreous.model.family import build_network
from vitreous.model.network import HasFeatureMap

SMALL_BIT = BiTConfig(depths=(1, 2), width=0.5, image_size=(32, 32), classes=5)
SMALL_EFFICIENTNET = EfficientNetConfig(width=0.5, depth=0.3, image_size=(64, 64), classes=5)


@torch.no_grad()
def scrambled(config, seed=0):
    """The network in evaluation mode; norms, statistics and classifier are random too, which start as 0 and 1."""
    network = build_network(config, seed)
    draw = torch.Generator().manual_seed(seed)
    kernels = {name for name, parameter in network.named_parameters() if parameter.ndim == 4}
    for name, tensor in network.state_dict().items():
        if name.endswith("num_batches_tracked"):
            tensor.fill_(7)
        elif name.endswith("running_var"):
            tensor.uniform_(0.5, 2.0, generator=draw)
        elif tensor.ndim == 2:
            tensor.normal_(0.0, 0.05, generator=draw)
        elif name not in kernels:
            tensor.normal_(1.0 if name.endswith(".weight") else 0.0, 0.2, generator=draw)
    return network.eval()


def random_images(config, count=2, seed=1, size=None):
    size = size or config.image_size
    return torch.randn(count, config.channels, *size, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def check_same_scores(network, theirs, images):
    """Those of another implementation, to rounding: in float32, and in float64."""
    assert (network(images) - theirs(images).logits).abs().max() < 1e-4
    network, theirs, images = network.double(), theirs.double(), images.double()
    assert (network(images) - theirs(images).logits).abs().max() < 1e-10


@torch.no_grad()
def check_parts(network, shape):
    """A feature map of this shape for each image, of which the scores and the representation are made."""
    assert isinstance(network, HasFeatureMap)
    images = random_images(network.config)
    features = network.feature_map(images)
    assert features.shape == (2, *shape)
    assert torch.equal(network.classify(features), network(images))
    assert torch.equal(network.representation(images), features.mean(dim=(2, 3)))
    with pytest.raises(UserError, match=r"\(2, 1, 8, 8\).*\(B, 3, H, W\)"):
        network(torch.zeros(2, 1, 8, 8))


def flops_by_torch(config):
    """Floating-point operations of one image, as torch counts them in a network without memory."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        build_network(config, seed=None).eval()(torch.empty(1, config.channels, *config.image_size))
    return counter.get_total_flops()


def kept_bytes(network, count=1):
    """Bytes of all that autograd saves of so many images in a forward pass, without weights and statistics."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers())}
    kept, alive = {}, []

    def watch(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(watch, lambda tensor: tensor):
        network(random_images(network.config, count))
    return sum(kept.values())
