"""Networks of the convolutional families with every number random, and small ones of each."""

import torch

from vitreous.config.bit import BiTConfig
from vitreous.config.efficientnet import EfficientNetConfig
from vitreous.model.family import build_network

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


def pictures(config, count=2, seed=1, size=None):
    size = size or config.image_size
    return torch.randn(count, config.channels, *size, generator=torch.Generator().manual_seed(seed))
