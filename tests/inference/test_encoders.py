"""What encoders published since the first ones have besides, exported to each runtime: it answers as the network."""

import pytest

from support.tiny_models import random_model
from support.tiny_networks import LABELS, assert_same
from support.variants import ENCODERS
from vitreous import export_weights
from vitreous.config.data import Preprocess
from vitreous.inference.engine_folder import load_engine
from vitreous.weights.bundle import Bundle

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
@pytest.mark.parametrize("name", ENCODERS)
def test_an_exported_encoder_answers_as_the_network(name, runtime, tmp_path):
    classes = {} if "projection" in ENCODERS[name] else {"classes": 4}
    network = random_model(**ENCODERS[name], **classes)
    preprocess = Preprocess(size=network.config.image_size, mean=(0.4,) * 3, std=(0.2,) * 3)
    bundle = Bundle(network, preprocess, LABELS[: network.config.classes])
    assert_same(load_engine(export_weights(bundle, tmp_path / "model", to=runtime)).engine, bundle)
