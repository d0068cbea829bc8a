"""What each parameter of a network is, told by the modules that hold it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from vitreous.model.network import Kind, Network, Role

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def module_roles(
    network: Network, layer_of: Callable[[str], int], classifier: Sequence[nn.Module] = ()
) -> dict[str, Role]:
    """The role of each parameter, by name, of any network.

    layer_of: the layer of a parameter's name: -1 for the embedding, 0 to `config.layers` - 1, or `config.layers`.
    classifier: the modules that are made anew for other classes.
    """
    ours = {id(parameter) for module in classifier for parameter in module.parameters()}
    norms = {
        id(parameter)
        for module in network.modules()
        if isinstance(module, _NORMS)
        for parameter in module.parameters(recurse=False)
    }
    found = {}
    for name, parameter in network.named_parameters():
        layer = layer_of(name)
        kind: Kind = "other"
        if id(parameter) in ours:
            kind = "classifier"
        elif id(parameter) in norms:
            kind = "norm"
        elif layer < 0:
            kind = "embedding"
        elif layer < network.config.layers and parameter.ndim == 2 and name.endswith(".weight"):
            kind = "matrix"
        found[name] = Role(layer, kind, decayed=parameter.ndim >= 2)
    return found
