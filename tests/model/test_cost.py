"""Counted costs against real models, torch's FLOP counter, and what autograd keeps."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from support.random_networks import kept_bytes
from support.variants import VARIANTS, random_images, random_model
from vitreous import ViT, preset
from vitreous.model.family import count_activation_bytes, count_flops, count_parameters, inference_batch


def test_parameters_are_those_of_the_model_and_flops_those_of_torchs_counter(subtests):
    for name, changes in VARIANTS.items():
        with subtests.test(name):
            model = random_model(**changes)
            assert count_parameters(model.config) == sum(p.numel() for p in model.parameters())
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                model(random_images(model, count=1))
            assert count_flops(model.config) == counter.get_total_flops()


FUSED = {name: changes for name, changes in VARIANTS.items() if changes.get("position") != "relative"}


def test_activation_memory_is_what_autograd_keeps(subtests):
    for name, changes in FUSED.items():
        with subtests.test(name):
            small = {"width": 64, "heads": 2, "mlp_width": 256, "depth": 6, "image_size": (32, 48)}
            model = random_model(**{**small, **changes})
            one_more = kept_bytes(model, 3) - kept_bytes(model, 2)  # masks are kept once for all
            assert count_activation_bytes(model.config) == pytest.approx(one_more, rel=0.02)


def test_activation_memory_of_a_real_preset():
    model = ViT("Ti/16")
    assert count_activation_bytes(preset("Ti/16")) == pytest.approx(kept_bytes(model), rel=0.005)


def test_a_forward_pass_takes_as_many_images_as_stay_in_the_cache():
    """Ti/16: 197 tokens of 768 hidden numbers of 4 bytes are 605,184; sixteen of them are below 10 MB."""
    assert inference_batch(preset("Ti/16")) == 16
    assert inference_batch(preset("H/14")) == 4
    assert inference_batch(preset("F/7@28")) == 128
