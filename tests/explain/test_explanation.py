"""An image is explained on the device of the model, and the result is on the CPU."""

import numpy as np
import pytest
import torch

from support.tiny_models import LABELS, VARIANTS, preprocess_for, random_model
from vitreous.explain import explanation
from vitreous.explain.explanation import Explainer
from vitreous.explain.methods import Maps, compute_maps
from vitreous.explain.request import EXPLANATION_METHODS, ExplanationRequest
from vitreous.weights.bundle import Bundle


def test_the_image_and_the_class_are_moved_to_the_models_device(monkeypatch):
    """A server moves a model to its accelerator. The device "meta" stands for one here, as every machine has it."""
    model = random_model()
    bundle = Bundle(model.to("meta"), preprocess_for(model), LABELS)
    devices = []

    def record(model, images, method, *, layer, targets, query):
        devices.extend([images.device.type, targets.device.type])
        return Maps((0,), torch.ones(1, 1, 1, 2, 2), torch.zeros(1, len(LABELS)))

    monkeypatch.setattr(explanation, "compute_maps", record)
    request = ExplanationRequest(method="relevance", target=LABELS[0])
    found = Explainer(bundle, request).explain(np.zeros((20, 20, 3), np.uint8))
    assert devices == ["meta", "meta"]
    assert found.label == LABELS[0]


@pytest.mark.parametrize(
    "method", [method for method in EXPLANATION_METHODS if method != "occlusion"]
)  # it counts patches
def test_no_method_mixes_devices(method, subtests):
    """A tensor on the CPU among those of "meta" is an error, as it is among those of an accelerator."""
    for name, changes in VARIANTS.items():
        model = random_model(**changes).to("meta")
        if not model.config.classes:
            continue
        with subtests.test(name):
            images = torch.zeros(2, model.config.channels, *model.config.image_size, device="meta")
            found = compute_maps(model, images, method, targets=torch.zeros(2, dtype=torch.long, device="meta"))
            assert found.maps.device.type == found.logits.device.type == "meta"
