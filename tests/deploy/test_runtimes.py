"""OpenVINO and ONNX Runtime say what the network says; a conversion that does not is refused and leaves nothing."""

import json
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import torch

from support.tiny_networks import LABELS, random_pictures, tiny_bundle
from vitreous import UserError, export_weights, predict
from vitreous.deploy.engine import TorchEngine
from vitreous.deploy.folder import is_engine, load_engine
from vitreous.deploy.graph import MOST
from vitreous.deploy.openvino import OpenVinoEngine, cut
from vitreous.deploy.runtime import RUNTIMES
from vitreous.run.engines import conversion
from vitreous.run.engines.conversion import builtin_views, convert_model

MODELS = {
    "ViT": ("P/4@16", {}),
    "ViT with relative positions": ("P/4@16", {"position": "relative"}),
    "ViT with axial attention": ("P/4@16", {"attention": "axial"}),
    "ViT that merges tokens": ("P/4@16", {"merge": 2, "depth": 3}),
    "ViT that merges tokens, mean": ("P/4@16", {"merge": 2, "depth": 3, "pool": "mean"}),
    "hybrid": ("C+P/4@16", {}),
    "BiT": ("bit-r11x0.5@32", {}),
    "BiT with a pooling in its stem": ("bit-r11x0.5@32", {"root": "7x7"}),
}


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("kind", MODELS)
def test_an_engine_says_what_the_network_says(kind, runtime):
    name, changes = MODELS[kind]
    bundle = tiny_bundle(name, **changes)
    pictures = random_pictures(bundle, 11)  # no multiple of any batch
    engine = convert_model(bundle, runtime, pictures).engine
    plain = TorchEngine(bundle.model, bundle.preprocess)
    for count in (1, 3, 11):
        torch.testing.assert_close(engine.scores(pictures[:count]), plain.scores(pictures[:count]), atol=1e-4, rtol=0)
    torch.testing.assert_close(engine.representations(pictures), plain.representations(pictures), atol=1e-4, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_efficientnet_too(runtime):
    bundle = tiny_bundle("efficientnet-b0@64")
    found = convert_model(bundle, runtime, random_pictures(bundle, 6)).about.verified
    assert found.close()
    assert found.pictures == found.same_label == 6


def test_runtimes_get_attention_and_gelu_whole():
    """Decomposed into products and exponentials, neither would be fast; the exact GELU, not the one by tanh."""
    bundle = tiny_bundle(depth=3)
    views = random_pictures(bundle, 2)
    ops = convert_model(bundle, "openvino", views).model.get_ops()
    kinds = Counter(op.get_type_name() for op in ops)
    assert kinds["ScaledDotProductAttention"] == kinds["Gelu"] == 3
    assert {op.get_attributes()["approximation_mode"] for op in ops if op.get_type_name() == "Gelu"} == {"ERF"}
    graph = convert_model(bundle, "onnx", views).model.graph
    kinds = Counter(node.op_type for node in graph.node)
    assert kinds["Attention"] == kinds["Gelu"] == 3
    assert "Erf" not in kinds


class PaddedPool(torch.nn.Module):
    """The end of BiT's stem, where every number is negative: zeros from around are the largest at the edge."""

    def forward(self, pictures):
        x = torch.nn.functional.pad(pictures.float() - 300, (1, 1, 1, 1))
        return (torch.nn.functional.max_pool2d(x, 3, 2),)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, about its own parts
def test_zeros_around_a_pooling_stay_zeros_in_onnx():
    """Left to itself, ONNX Runtime's optimiser makes both one, and the edge negative."""
    pictures = torch.arange(2 * 64, dtype=torch.uint8).reshape(2, 1, 8, 8)
    shapes = ({0: torch.export.Dim("batch", min=1, max=MOST)},)
    program = torch.export.export(PaddedPool(), (pictures,), dynamic_shapes=shapes).run_decompositions({})
    content = RUNTIMES["onnx"].convert(program, ["pooled"], {}).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (found,) = session.run(["pooled"], {"pictures": pictures.numpy()})
    (expected,) = PaddedPool()(pictures)
    assert (expected[:, :, 0] == 0).all()
    np.testing.assert_array_equal(found, expected.numpy())


def test_chunks_cover_all_pictures():
    for count in range(1, 30):
        pictures = np.arange(count, dtype=np.uint8)[:, None]
        seen = []
        for part, chunk in cut(pictures, 4):
            assert len(chunk) == (1 if count == 1 else 4)
            own = part.stop - part.start
            assert (chunk[own:] == 0).all()
            seen += chunk[:own, 0].tolist()
        assert seen == list(range(count))


ODD = {
    "grey": {"channels": 1},
    "not square": {"image_size": (16, 24)},
    "padded": {"image_size": (15, 18), "pad": True},
    "class and mean": {"pool": "class+mean"},
    "distilled": {"distilled": True},
    "no classifier": {"classes": 0},
}


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("kind", ODD)
def test_odd_networks_too(kind, runtime):
    bundle = tiny_bundle("P/4@16", **ODD[kind])
    found = convert_model(bundle, runtime, random_pictures(bundle, 5))
    assert found.about.verified.equal == 5
    assert found.engine.classes == bundle.model.config.classes
    assert found.engine.representations(random_pictures(bundle, 3)).shape == (3, bundle.model.config.features)


@pytest.fixture(scope="module", params=list(RUNTIMES))
def exported(request, tmp_path_factory):
    """A model exported to each runtime."""
    bundle = tiny_bundle()
    return bundle, export_weights(bundle, tmp_path_factory.mktemp("exported") / "model", request.param)


def test_an_exported_folder_is_a_model(exported):
    bundle, folder = exported
    pictures = list(random_pictures(bundle, 5))
    expected = predict(bundle, pictures, engine="torch")
    found = predict(folder, pictures)
    assert [one.label for one in found] == [one.label for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert [score.score for score in one.top] == pytest.approx([score.score for score in other.top], abs=1e-4)


def test_the_file_tells_others_its_classes_and_preprocessing(exported):
    """Read by the runtimes themselves, without this package; probabilities sum to 1 for any number of pictures."""
    bundle, folder = exported
    pictures = random_pictures(bundle, 3).numpy()
    if (folder / "model.onnx").exists():
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
        facts = session.get_modelmeta().custom_metadata_map
        found = session.run(["probabilities"], {"pictures": pictures})[0]
        onnx.checker.check_model(str(folder / "model.onnx"))
    else:
        model = openvino.Core().read_model(folder / "model.xml")
        facts = {name: model.get_rt_info(["vitreous", name]).astype(str) for name in ("labels", "preprocess")}
        found = openvino.Core().compile_model(model, "CPU")({"pictures": pictures})["probabilities"]
    assert json.loads(facts["labels"]) == list(LABELS)
    assert json.loads(facts["preprocess"])["mean"] == list(bundle.preprocess.mean)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)


def test_what_is_damaged_is_refused(exported, tmp_path):
    _, folder = exported
    for file in folder.iterdir():
        copy = tmp_path / file.name
        copy.mkdir()
        for other in folder.iterdir():
            content = bytearray(other.read_bytes())
            if other == file:
                content[len(content) // 2] ^= 1
            (copy / other.name).write_bytes(content)
        assert is_engine(copy)
        with pytest.raises(UserError, match=r"damaged|format"):
            load_engine(copy)


def broken_onnx(program, names, facts):
    """Converts as it should, and then spoils the second block's first linear layer."""
    model = CONVERT["onnx"](program, names, facts)
    for tensor in model.graph.initializer:
        if tensor.name == "network.blocks.1.mlp.fc1.bias":
            values = onnx.numpy_helper.to_array(tensor) + 1
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
            return model
    raise AssertionError("no such tensor")


def broken_openvino(program, names, facts):
    """The same in OpenVINO's graph: what is added after the product is larger by 1."""
    model = CONVERT["openvino"](program, names, facts)
    nodes = {node.get_friendly_name(): node for node in model.get_ops()}
    products = [
        node.name for node in program.graph.nodes if "blocks.1.mlp.fc1" in str(node.meta.get("nn_module_stack"))
    ]
    (name,) = [name for name in products if name.startswith("linear")]
    add = nodes[f"{name}/aten.linear.default/Add"]
    bias = next(value.get_node() for value in add.input_values() if value.get_node().get_type_name() == "Constant")
    add.input(1).replace_source_output(openvino.opset13.constant(bias.data + 1).output(0))
    model.validate_nodes_and_infer_types()
    return model


CONVERT = {name: runtime.convert for name, runtime in RUNTIMES.items()}
SESSION = onnxruntime.InferenceSession


@pytest.mark.parametrize(("runtime", "broken"), [("onnx", broken_onnx), ("openvino", broken_openvino)])
def test_a_broken_conversion_is_refused_and_names_the_layer(runtime, broken, monkeypatch, tmp_path):
    spoilt = RUNTIMES[runtime].__class__(**{**RUNTIMES[runtime].__dict__, "convert": broken})
    monkeypatch.setitem(RUNTIMES, runtime, spoilt)
    with pytest.raises(UserError, match=r"does not compute what the network does.*blocks\.1\.mlp\.fc1\b"):
        export_weights(tiny_bundle(), tmp_path / "out", runtime)
    assert not list(tmp_path.iterdir())


def not_opened_onnx(program, names, facts):
    """A graph with an operation that ONNX Runtime does not know."""
    model = CONVERT["onnx"](program, names, facts)
    model.graph.node[0].op_type = "NoSuchOperation"
    return model


def not_run_onnx(program, names, facts):
    """A graph that is opened, and fails when it is asked: pictures are given another shape than they can have."""
    model = CONVERT["onnx"](program, names, facts)
    reshape = next(node for node in model.graph.node if node.op_type == "Reshape")
    (shape,) = (tensor for tensor in model.graph.initializer if tensor.name == reshape.input[1])
    shape.CopyFrom(onnx.numpy_helper.from_array(np.array([-1, 3, 4, 4, 4, 7]), shape.name))
    return model


@pytest.mark.parametrize("broken", [not_opened_onnx, not_run_onnx])
def test_a_graph_that_cannot_be_computed_is_refused_with_a_sentence(broken, monkeypatch, tmp_path):
    spoilt = RUNTIMES["onnx"].__class__(**{**RUNTIMES["onnx"].__dict__, "convert": broken})
    monkeypatch.setitem(RUNTIMES, "onnx", spoilt)
    with pytest.raises(UserError, match=r"the model: ONNX cannot take this network \(.*\); use another runtime\.$"):
        export_weights(tiny_bundle(), tmp_path / "out", "onnx")
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_is_said_where_the_layer_cannot_be_found(monkeypatch, tmp_path):
    """ONNX Runtime opens the model, and not the one that gives every layer's numbers too."""
    opened = []

    def open_once(*given, **more):
        if opened:
            raise onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph("too many outputs")
        opened.append(SESSION(*given, **more))
        return opened[0]

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_once)
    spoilt = RUNTIMES["onnx"].__class__(**{**RUNTIMES["onnx"].__dict__, "convert": broken_onnx})
    monkeypatch.setitem(RUNTIMES, "onnx", spoilt)
    with pytest.raises(UserError, match=r"does not compute what the network does .* allowed is 0\.0001\)\. Nothing"):
        export_weights(tiny_bundle(), tmp_path / "out", "onnx")


class Exchanged(OpenVinoEngine):
    """Red for blue."""

    def _answer(self, pictures, what):
        return super()._answer(pictures.flip(1), what)


class OddAlone(OpenVinoEngine):
    """Its graph for one picture is another."""

    def _answer(self, pictures, what):
        return super()._answer(pictures, what) + (len(pictures) == 1)


@pytest.mark.parametrize("engine", [Exchanged, OddAlone])
def test_the_packages_own_pictures_show_what_a_runtime_does_wrong(engine, monkeypatch):
    runtime = RUNTIMES["openvino"]
    bundle = tiny_bundle()
    monkeypatch.setitem(RUNTIMES, "openvino", type(runtime)(**{**runtime.__dict__, "engine": engine}))
    with pytest.raises(UserError, match="does not compute what the network does"):
        convert_model(bundle, "openvino", builtin_views(bundle.preprocess))


def test_the_layer_is_looked_for_in_the_picture_that_differs_most(monkeypatch):
    """A layer that is wrong for bright pictures only, of which there is one."""
    bundle = tiny_bundle()
    looked_at = []
    monkeypatch.setattr(conversion, "first_difference", lambda *given: looked_at.append(given[-1]))

    class OddBright(OpenVinoEngine):
        def _answer(self, pictures, what):
            return super()._answer(pictures, what) + (pictures.float().mean(dim=(1, 2, 3)) > 250)[:, None]

    runtime = RUNTIMES["openvino"]
    monkeypatch.setitem(RUNTIMES, "openvino", type(runtime)(**{**runtime.__dict__, "engine": OddBright}))
    pictures = random_pictures(bundle, 7)
    pictures[5] = 255
    with pytest.raises(UserError, match="of 7 pictures 6 have the same answer"):
        convert_model(bundle, "openvino", pictures)
    assert torch.equal(looked_at[0], pictures[5:6])


def test_a_request_that_fails_is_an_error_each_time_and_keeps_nobody_waiting(monkeypatch):
    class Failing:
        def create_infer_request(self):
            return self

        def start_async(self, inputs):
            pass

        def wait(self):
            raise RuntimeError("out of memory")

    bundle = tiny_bundle()
    pictures = random_pictures(bundle, 11)
    engine = convert_model(bundle, "openvino", pictures).engine
    engine = type(engine)(engine.model, bundle.preprocess, "fp32")
    monkeypatch.setattr("vitreous.deploy.openvino._compile", lambda *settings: Failing())
    for _ in range(engine.threads + 2):  # more often than there are requests
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.scores(pictures)
