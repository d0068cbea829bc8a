"""Grad-CAM on a feature map, against numbers worked out by hand; and what a network without attention is told."""

import pytest
import torch

from support import tiny_conv
from support.tiny_conv import TinyConvConfig
from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.explain.methods import check_request, compute_maps, default_method
from vitreous.explain.patch_geometry import place_cells
from vitreous.explain.relevance import feature_map_gradcam
from vitreous.explain.request import EXPLANATION_METHODS, ExplanationRequest
from vitreous.model.family import build_network
from vitreous.model.network import Network, Outputs


class Known(Network):
    """Two channels of 2 x 2 places: the image's own, and two scores that weigh their places by hand."""

    config = TinyConvConfig(image_size=(2, 2), channels=2, classes=2)

    def feature_map(self, images):
        return images

    def classify(self, feature_map):
        a, b = feature_map[:, 0], feature_map[:, 1]
        first = 4 * a[:, 0, 0] + 8 * a[:, 0, 1] - 2 * b[:, 1, 1]
        second = 3 * b[:, 0, 0] + 3 * b[:, 1, 0]
        return torch.stack([first, second], dim=1)

    def outputs(self, images, *, keys=None):
        return Outputs(images.flatten(1), self.classify(images))


IMAGE = torch.tensor([[[[1.0, 2], [3, -4]], [[5.0, 1], [1, 2]]]])


def test_it_is_the_papers_by_hand():
    """Of two classes, the evidence for the first is score 1 - score 2.

    Channel 1: its gradient is 4, 8, 0, 0, with the mean 3. Channel 2: -3, 0, -3, -2, with the mean -2.
    3 * (1, 2, 3, -4) - 2 * (5, 1, 1, 2) = -7, 4, 7, -16; what is below 0 is cut.
    """
    maps, scores = feature_map_gradcam(Known(), IMAGE, torch.tensor([0]))
    torch.testing.assert_close(maps, torch.tensor([[[0.0, 4], [7, 0]]]))
    torch.testing.assert_close(scores, torch.tensor([[16.0, 18]]))
    likeliest, _ = feature_map_gradcam(Known(), IMAGE, None)  # the second class: the same with the other sign
    torch.testing.assert_close(likeliest, torch.tensor([[[7.0, 0], [0, 16]]]))


def test_images_of_a_batch_do_not_mix_and_inference_mode_is_no_hindrance():
    both = torch.cat([IMAGE, -IMAGE])
    with torch.inference_mode():
        made = compute_maps(Known(), both * 1, "gradcam", targets=torch.tensor([0, 0]))
    assert made.layers == ()
    assert made.maps.shape == (2, 1, 1, 2, 2)
    torch.testing.assert_close(made.maps[:, 0, 0], torch.tensor([[[0.0, 4], [7, 0]], [[7, 0], [0, 16]]]))


def test_where_the_cells_lie_on_the_image():
    """A view of the middle 0.5 of an image of 40 x 40: from 10 to 30, in 2 rows of 10 and 4 columns of 5 pixels."""
    place = place_cells(40, 40, Preprocess(size=(16, 16), crop=0.5), (2, 4))
    assert place.box == (10, 10, 30, 30)
    rows, columns = place.centres()
    assert rows.tolist() == [15, 25]
    assert columns.tolist() == [12.5, 17.5, 22.5, 27.5]


@pytest.fixture
def conv(monkeypatch):
    tiny_conv.register(monkeypatch)
    return build_network(TinyConvConfig()).eval()


def ask(model, method, size=None, **more):
    check_request(model, ExplanationRequest(method=method, **more), size)


def test_what_can_be_asked_of_a_network_without_attention(conv):
    assert default_method(conv) == default_method(conv, query=True) == "gradcam"
    ask(conv, "gradcam", target="a")
    ask(conv, "occlusion", target="a")
    attending = {"attention", "rollout", "relevance"}
    assert {*attending, "gradcam", "occlusion"} == set(EXPLANATION_METHODS)
    for method in attending:
        with pytest.raises(UserError, match=f"^method {method}: .*'tiny-conv'"):
            ask(conv, method)
        with pytest.raises(UserError, match=f"^method {method}: .*'tiny-conv'"):
            compute_maps(conv, torch.zeros(1, 3, 16, 16), method)
    with pytest.raises(UserError, match="layer 1"):
        ask(conv, "gradcam", layer=1)
    with pytest.raises(UserError, match="head 0"):
        ask(conv, "gradcam", head=0)
    with pytest.raises(UserError, match="query"):
        ask(conv, "gradcam", query=(1.0, 1.0))
    bare = build_network(TinyConvConfig(classes=0))
    with pytest.raises(UserError, match="gradcam"):
        ask(bare, "gradcam")


def test_a_network_that_tells_nothing_of_places(monkeypatch):
    class Blind(Network):
        config = TinyConvConfig()

        def outputs(self, images, *, keys=None):
            return Outputs(images.mean(dim=(2, 3)), images.mean(dim=(2, 3)))

    with pytest.raises(UserError, match="method gradcam"):
        ask(Blind(), "gradcam")


class Small(Known):
    """As many places as a stride of 2 leaves."""

    def feature_map(self, images):
        assert not self.training
        return images[:, :, ::2, ::2]


def test_a_map_of_one_place_tells_nothing_apart():
    model = Small().train()
    assert default_method(model) == "occlusion"
    assert default_method(model, size=(2, 3)) == default_method(model, size=(10**6, 10**6)) == "gradcam"
    with pytest.raises(UserError, match=r"gradcam.*occlusion"):
        ask(model, "gradcam")
    ask(model, "gradcam", (4, 4))
    ask(model, "occlusion")
    assert model.training
