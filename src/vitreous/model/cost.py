"""What a network costs, and how to find it by running one that has shapes and no numbers (torch's meta device)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # torch takes a second to import, and what our own families cost is counted without it
    from torch import Tensor, nn

    from vitreous.model.network import Network


class NetworkCost(NamedTuple):
    """What one image costs, in float32."""

    parameters: int
    flops: int
    """Of a forward pass: floating-point operations of matrix products and convolutions; a multiply-add is two."""
    activation_bytes: int  # that a training step keeps from the forward pass for the backward pass
    forward_bytes: int  # that a forward pass needs at once where no gradient is wanted
    largest_activation: int  # bytes of the largest tensor


def measure_cost(network: Network) -> NetworkCost:
    """That of a network on the meta device."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    c = network.config

    def images(count: int) -> Tensor:
        return torch.empty(count, c.channels, *c.image_size, device="meta")

    largest = 0

    def see(module: nn.Module, inputs: object, output: object) -> None:
        nonlocal largest
        if isinstance(output, torch.Tensor):
            largest = max(largest, output.numel() * output.element_size())

    hooks = [module.register_forward_hook(see) for module in network.modules()]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.eval()(images(1))
    for hook in hooks:
        hook.remove()

    own = {tensor.untyped_storage()._cdata for tensor in (*network.parameters(), *network.buffers())}
    saved: dict[int, Tensor] = {}  # by storage; they are held, for an address means one storage only while that lives

    def save(tensor: Tensor) -> Tensor:
        if (address := tensor.untyped_storage()._cdata) not in own:
            saved[address] = tensor
        return tensor

    count = 2  # a norm over the batch refuses a single image
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        network.train()(images(count))
    activations = sum(tensor.untyped_storage().nbytes() for tensor in saved.values()) // count
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return NetworkCost(parameters, int(counter.get_total_flops()), activations, 2 * largest, largest)
