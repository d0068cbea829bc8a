"""The traced graph computes what the network does, once, for any number of images."""

import pytest
import torch

from support.tiny_networks import random_images, tiny_bundle
from vitreous.data.augment import normalise
from vitreous.inference.graph import output_names, trace_graph

KINDS = {
    "plain": ("P/4@16", {}),
    "axial, distilled, registers": ("P/4@16", {"attention": "axial", "distilled": True, "registers": 2, "depth": 1}),
    "neighbourhood, attention pool, SwiGLU": (
        "P/4@16",
        {"attention": "neighbourhood", "window": 3, "pool": "attention", "mlp": "swiglu", "depth": 1},
    ),
    "relative positions": ("P/4@16", {"position": "relative", "depth": 1}),
    "hybrid": ("C+P/4@16", {"depth": 1}),
    "BiT": ("bit-r11x0.5@32", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_is_the_network(kind):
    name, changes = KINDS[kind]
    bundle = tiny_bundle(name, **changes)
    program = trace_graph(bundle.model, bundle.preprocess).module()
    for count in (1, 5):
        images = random_images(bundle, count)
        probabilities, logits, representation = program(images)
        normalised = normalise(images, bundle.preprocess)
        with torch.no_grad():
            torch.testing.assert_close(logits, bundle.model(normalised), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(representation, bundle.model.representation(normalised), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(probabilities, logits.softmax(dim=1))


@pytest.mark.slow
def test_what_two_answers_share_is_computed_once():
    """A ViT of two blocks has one product for patches, six in each block and one classifier.

    Queries, keys and values are a product each, so that no runtime copies them out of one.
    """
    bundle = tiny_bundle()
    program = trace_graph(bundle.model, bundle.preprocess)
    products = [node for node in program.graph.nodes if node.target == torch.ops.aten.linear.default]
    assert len(products) == 1 + 2 * 6 + 1
    assert not any(node.target == torch.ops.aten.split.Tensor for node in program.graph.nodes)


@pytest.mark.slow
def test_positions_are_resized_within_the_graph():
    bundle = tiny_bundle(depth=1)
    larger = type(bundle.preprocess)(size=(24, 24), mean=bundle.preprocess.mean, std=bundle.preprocess.std)
    images = torch.randint(0, 256, (2, 3, 24, 24), dtype=torch.uint8)
    logits = trace_graph(bundle.model, larger).module()(images)[1]
    with torch.no_grad():
        torch.testing.assert_close(logits, bundle.model(normalise(images, larger)), atol=1e-5, rtol=1e-5)


def test_without_a_classifier_there_is_only_a_representation():
    bundle = tiny_bundle(classes=0, depth=1)
    assert output_names(bundle.model) == ("representation",)
    (found,) = trace_graph(bundle.model, bundle.preprocess).module()(random_images(bundle, 2))
    assert found.shape == (2, bundle.model.config.features)
