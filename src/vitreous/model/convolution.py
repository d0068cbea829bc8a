"""What the convolutional families share: padding as TensorFlow does it, and standardised kernels.

Letters in shapes: B images, C channels, H x W places.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import UserError
from vitreous.model.initialise import Convolution

EPSILON = 1e-8
"""Added to a kernel's variance, as in timm and `transformers`; Google's code adds 1e-10, which no result shows."""


class PaddedConvolution(Convolution):
    """A convolution whose output has a place for each place of the input, or for each `stride`-th.

    tf_padding: pad as TensorFlow's "SAME" does: as little as the image's size needs, and of an odd number the
        larger part at the right and bottom. Otherwise pad both sides alike, whatever the size.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        *,
        groups: int = 1,
        bias: bool = False,
        tf_padding: bool = False,
    ) -> None:
        by_size = tf_padding and stride > 1  # with stride 1 and an odd kernel both ways are one
        super().__init__(
            inputs, outputs, kernel, stride, padding=0 if by_size else kernel // 2, groups=groups, bias=bias
        )
        self.padded_by_size = by_size

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, outputs, ceil(H / stride), ceil(W / stride))."""
        if self.padded_by_size:
            x = pad_same(x, self.kernel_size[0], self.stride[0])
        return self._conv_forward(x, self.kernel_weight(), self.bias)

    def kernel_weight(self) -> Tensor:
        return self.weight


class StandardisedConvolution(PaddedConvolution):
    """The same with kernels of mean 0 and variance 1 (weight standardisation, Qiao et al. 2019)."""

    def kernel_weight(self) -> Tensor:
        """(outputs, inputs, k, k): (w - mean) / sqrt(variance + epsilon) of each output's kernel."""
        rows = self.weight.flatten(1)  # (outputs, inputs * k * k); a layer norm is this very formula, computed fast
        return F.layer_norm(rows, rows.shape[1:], eps=EPSILON).view_as(self.weight)


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """The image with what TensorFlow's "SAME" adds around it for a kernel and stride."""
    rows, columns = (max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[2:])
    if not rows and not columns:
        return x
    return F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2), value=value)


def check_images(images: Tensor, channels: int) -> None:
    if images.ndim != 4 or images.shape[1] != channels:
        raise UserError(
            f"images of shape {tuple(images.shape)}: expected (B, {channels}, H, W); "
            "convert the images, or build the model with that number of channels."
        )
