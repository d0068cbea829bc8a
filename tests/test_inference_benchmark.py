"""What benchmarks/contenders.py says of the engine that answered; nothing is measured."""

import sys
from pathlib import Path

from colours import make_bundle
from deploy.models import random_pictures

from vitreous.run.engines.conversion import convert_model
from vitreous.run.engines.prepared import TORCH, PreparedEngines, Variant
from vitreous.weights.bundle import load_bundle

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from contenders import Exports, Vitreous


def test_the_engine_is_the_one_that_auto_takes(monkeypatch, tmp_path):
    """Not the fastest of all: for few pictures that is not worth its opening."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    path = make_bundle(tmp_path / "bundle")
    bundle = load_bundle(path)
    prepared = PreparedEngines(bundle)
    prepared.put(convert_model(bundle, "openvino", random_pictures(bundle, 4)))
    prepared.remember({TORCH: 10.0, Variant("openvino", "fp32"): 25.0})
    exports = Exports(path, path, path, ())
    assert Vitreous(exports, "auto").engine_for(15) == "torch-fp32"
    assert Vitreous(exports, "auto").engine_for(100) == "openvino-fp32"
    assert Vitreous(exports, "torch").engine_for(100) == "torch-fp32"
