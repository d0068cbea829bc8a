"""Lets torchvision, and so timm and transformers' processors, be imported beside a CPU build of torch.

torchvision's compiled part wants CUDA libraries and does not load; its Python part needs no more of it than that two
operators exist. Import this before transformers or timm.
"""

import torch

LIBRARY = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
for _name in ("nms", "qnms"):
    LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
