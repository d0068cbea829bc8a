"""An exported folder is a model that answers as the network; a wrong conversion is refused and leaves nothing."""

import json
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import torch

from support.tiny_networks import LABELS, assert_same, random_images, tiny_bundle
from vitreous import UserError, export_weights, predict
from vitreous.inference import conversion
from vitreous.inference.conversion import builtin_views, convert_model
from vitreous.inference.engine_folder import is_engine, load_engine
from vitreous.inference.engines import ENGINES, converted_variants
from vitreous.inference.graph import output_names, trace_graph
from vitreous.inference.openvino import OpenVinoEngine

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=list(dict(converted_variants())))
def exported(request, tmp_path_factory):
    """A plain ViT of two blocks, exported to each runtime."""
    bundle = tiny_bundle()
    return bundle, export_weights(bundle, tmp_path_factory.mktemp("exported") / "model", to=request.param)


def test_an_exported_folder_is_a_model(exported):
    bundle, folder = exported
    assert_same(load_engine(folder).engine, bundle)
    images = list(random_images(bundle, 5))
    expected = predict(bundle, images, engine="torch")
    found = predict(folder, images)
    assert [one.label for one in found] == [one.label for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert [score.score for score in one.top] == pytest.approx([score.score for score in other.top], abs=1e-4)


def test_runtimes_get_attention_and_gelu_whole(exported):
    """Decomposed into products and exponentials, neither would be fast; the exact GELU, not the one by tanh."""
    _, folder = exported
    if (folder / "model.onnx").exists():
        kinds = Counter(node.op_type for node in onnx.load(folder / "model.onnx").graph.node)
        assert kinds["Attention"] == kinds["Gelu"] == 2
        assert "Erf" not in kinds
    else:
        ops = openvino.Core().read_model(folder / "model.xml").get_ops()
        kinds = Counter(op.get_type_name() for op in ops)
        assert kinds["ScaledDotProductAttention"] == kinds["Gelu"] == 2
        assert {op.get_attributes()["approximation_mode"] for op in ops if op.get_type_name() == "Gelu"} == {"ERF"}


def test_the_file_tells_others_its_classes_and_preprocessing(exported):
    """Read by the runtimes themselves, without this package; probabilities sum to 1 for any number of images."""
    bundle, folder = exported
    images = random_images(bundle, 3).numpy()
    if (folder / "model.onnx").exists():
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
        facts = session.get_modelmeta().custom_metadata_map
        found = session.run(["probabilities"], {"images": images})[0]
        onnx.checker.check_model(str(folder / "model.onnx"))
    else:
        model = openvino.Core().read_model(folder / "model.xml")
        facts = {name: model.get_rt_info(["vitreous", name]).astype(str) for name in ("labels", "preprocess")}
        found = openvino.Core().compile_model(model, "CPU")({"images": images})["probabilities"]
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
        with pytest.raises(UserError, match=re.escape(str(copy))):
            load_engine(copy)


@pytest.fixture(scope="module")
def plain():
    """A ViT, its graph, and what each runtime makes of that, which tests copy before they change it."""
    bundle = tiny_bundle()
    program = trace_graph(bundle.model, bundle.preprocess)
    names = output_names(bundle.model)
    return SimpleNamespace(
        bundle=bundle,
        program=program,
        **{name: ENGINES[name].convert(program, names, {}) for name in dict(converted_variants())},
    )


@pytest.fixture
def install(plain, monkeypatch):
    """`install("onnx", model, engine=...)`: what a runtime makes of the plain ViT, and other parts of the runtime."""

    def change(name, model, **parts):
        monkeypatch.setattr(conversion, "trace_graph", lambda *_: plain.program)
        monkeypatch.setitem(ENGINES, name, replace(ENGINES[name], convert=lambda *_: model, **parts))

    return change


def copy_onnx(plain):
    model = onnx.ModelProto()
    model.CopyFrom(plain.onnx)
    return model


def broken_onnx(plain):
    """The second block's first linear layer adds 1 too much."""
    model = copy_onnx(plain)
    (tensor,) = (one for one in model.graph.initializer if one.name == "network.blocks.1.mlp.fc1.bias")
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) + 1, tensor.name))
    return model


def broken_openvino(plain):
    """The same in OpenVINO's graph: what is added after the product is larger by 1."""
    model = plain.openvino.clone()
    nodes = {node.get_friendly_name(): node for node in model.get_ops()}
    products = [
        node.name for node in plain.program.graph.nodes if "blocks.1.mlp.fc1" in str(node.meta.get("nn_module_stack"))
    ]
    (name,) = [name for name in products if name.startswith("linear")]
    add = nodes[f"{name}/aten.linear.default/Add"]
    bias = next(value.get_node() for value in add.input_values() if value.get_node().get_type_name() == "Constant")
    add.input(1).replace_source_output(openvino.opset13.constant(bias.data + 1).output(0))
    model.validate_nodes_and_infer_types()
    return model


@pytest.mark.parametrize(("runtime", "broken"), [("onnx", broken_onnx), ("openvino", broken_openvino)])
def test_a_broken_conversion_is_refused_and_names_the_layer(runtime, broken, plain, install, tmp_path):
    install(runtime, broken(plain))
    with pytest.raises(UserError, match=r"0\.0001.*blocks\.1\.mlp\.fc1\b"):
        export_weights(plain.bundle, tmp_path / "out", to=runtime)
    assert not list(tmp_path.iterdir())


def unknown_operation(plain):
    """A graph that ONNX Runtime cannot open."""
    model = copy_onnx(plain)
    model.graph.node[0].op_type = "NoSuchOperation"
    return model


def impossible_shape(plain):
    """A graph that is opened, and fails when it is asked: images are given another shape than they can have."""
    model = copy_onnx(plain)
    reshape = next(node for node in model.graph.node if node.op_type == "Reshape")
    (shape,) = (tensor for tensor in model.graph.initializer if tensor.name == reshape.input[1])
    shape.CopyFrom(onnx.numpy_helper.from_array(np.array([-1, 3, 4, 4, 4, 7]), shape.name))
    return model


@pytest.mark.parametrize("broken", [unknown_operation, impossible_shape])
def test_a_graph_that_cannot_be_computed_is_refused(broken, plain, install, tmp_path):
    install("onnx", broken(plain))
    with pytest.raises(UserError, match=r"^the model: ONNX ") as refused:
        export_weights(plain.bundle, tmp_path / "out", to="onnx")
    assert "0.0001" not in str(refused.value), "it was not computed, so nothing was compared"
    assert not list(tmp_path.iterdir())


def test_a_wrong_graph_is_refused_where_the_layer_cannot_be_found(plain, install, monkeypatch, tmp_path):
    """ONNX Runtime opens the model, and not the one that gives every layer's numbers too."""
    opened, session = [], onnxruntime.InferenceSession

    def open_once(*given, **more):
        if opened:
            raise onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph("too many outputs")
        opened.append(session(*given, **more))
        return opened[0]

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_once)
    install("onnx", broken_onnx(plain))
    with pytest.raises(UserError, match=r"0\.0001") as refused:
        export_weights(plain.bundle, tmp_path / "out", to="onnx")
    assert "blocks" not in str(refused.value)


class Exchanged(OpenVinoEngine):
    """Red for blue."""

    def _compute(self, images, what):
        return super()._compute(images.flip(1), what)


class OddAlone(OpenVinoEngine):
    """Its graph for one image is another."""

    def _compute(self, images, what):
        return [values + (len(images) == 1) for values in super()._compute(images, what)]


@pytest.mark.parametrize("engine", [Exchanged, OddAlone])
def test_the_packages_own_images_show_what_a_runtime_does_wrong(engine, plain, install):
    install("openvino", plain.openvino, engine=engine)
    with pytest.raises(UserError, match=r"0\.0001"):
        convert_model(plain.bundle, "openvino", builtin_views(plain.bundle.preprocess))


def test_the_layer_is_looked_for_in_the_image_that_differs_most(plain, install, monkeypatch):
    """A layer that is wrong for bright images only, of which there is one."""
    looked_at = []
    monkeypatch.setattr(conversion, "first_difference", lambda *given: looked_at.append(given[-1]))

    class OddBright(OpenVinoEngine):
        def _compute(self, images, what):
            odd = (images.float().mean(dim=(1, 2, 3)) > 250)[:, None]
            return [values + odd for values in super()._compute(images, what)]

    install("openvino", plain.openvino, engine=OddBright)
    images = random_images(plain.bundle, 7)
    images[5] = 255
    with pytest.raises(UserError, match=r"\b7\b.*\b6\b"):
        convert_model(plain.bundle, "openvino", images)
    assert torch.equal(looked_at[0], images[5:6])


def test_a_request_that_fails_is_an_error_each_time_and_keeps_nobody_waiting(plain, monkeypatch):
    class Failing:
        def create_infer_request(self):
            return self

        def start_async(self, inputs):
            pass

        def wait(self):
            raise RuntimeError("out of memory")

    monkeypatch.setattr("vitreous.inference.openvino._compile", lambda *settings: Failing())
    engine = OpenVinoEngine(plain.openvino, plain.bundle.preprocess, "fp32")
    for _ in range(engine.threads + 2):  # more often than there are requests
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.logits(random_images(plain.bundle, 11))
