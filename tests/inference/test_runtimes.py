"""OpenVINO and ONNX Runtime compute what the network does, whatever the network."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from support.tiny_networks import assert_same, random_images, tiny_bundle
from vitreous.inference import conversion
from vitreous.inference.conversion import convert_model
from vitreous.inference.engines import ENGINES, converted_variants
from vitreous.inference.graph import MAX_BATCH_SIZE, trace_graph
from vitreous.inference.openvino import split_chunks


def test_a_row_of_the_table_is_all_that_an_engine_needs():
    """What a person may choose, and what `pip install 'vitreous[...]'` brings, are the table's rows."""
    converted = dict(converted_variants())
    assert set(ENGINES) == {"torch", *converted}
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert f"--engine auto|{'|'.join(ENGINES)} " in page
    assert f"--to huggingface|timm|google|{'|'.join(converted)} " in page
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for name in converted:
        brought = {re.split(r"[^a-z]", one)[0] for one in project["optional-dependencies"][name]}
        assert set(ENGINES[name].needs) <= brought


COMBINED = {
    "ViT: relative positions, grey, not square": (
        "P/4@16",
        {"position": "relative", "channels": 1, "image_size": (16, 24), "depth": 1},
    ),
    "ViT: axial attention, distilled, padded": (
        "P/4@16",
        {"attention": "axial", "distilled": True, "image_size": (15, 18), "pad": True, "depth": 1},
    ),
    "ViT: merges tokens, class and mean": ("P/4@16", {"merge": 2, "pool": "class+mean"}),
    "hybrid without a classifier": ("C+P/4@16", {"classes": 0, "depth": 1}),
    "BiT with a pooling in its stem": ("bit-r11x0.5@32", {"root": "7x7"}),
    "EfficientNet": ("efficientnet-b0@32", {"width": 0.1, "depth": 0.1}),
}
"""Networks that have every kind of layer between them; `test_conversion` has the plain ViT."""
SEPARATE = {
    "ViT": ("P/4@16", {}),
    "ViT with relative positions": ("P/4@16", {"position": "relative"}),
    "ViT with axial attention": ("P/4@16", {"attention": "axial"}),
    "ViT that merges tokens": ("P/4@16", {"merge": 2, "depth": 3}),
    "ViT that merges tokens, mean": ("P/4@16", {"merge": 2, "depth": 3, "pool": "mean"}),
    "hybrid": ("C+P/4@16", {}),
    "BiT": ("bit-r11x0.5@32", {}),
    "EfficientNet-B0": ("efficientnet-b0@64", {}),
    "grey": ("P/4@16", {"channels": 1}),
    "not square": ("P/4@16", {"image_size": (16, 24)}),
    "padded": ("P/4@16", {"image_size": (15, 18), "pad": True}),
    "class and mean": ("P/4@16", {"pool": "class+mean"}),
    "distilled": ("P/4@16", {"distilled": True}),
    "no classifier": ("P/4@16", {"classes": 0}),
}


def convert_once(bundle, images):
    """(runtime, what `convert_model` makes) for each runtime, of a graph that is traced and compiled once."""
    program = trace_graph(bundle.model, bundle.preprocess)
    for name in dict(converted_variants()):
        engines = []

        def engine(*given, make=ENGINES[name].engine, engines=engines):
            engines.extend([] if engines else [make(*given)])
            return engines[0]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(conversion, "trace_graph", lambda *_: program)
            patch.setitem(ENGINES, name, replace(ENGINES[name], engine=engine))
            converted = convert_model(bundle, name, images)
            yield converted, converted.engine


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*COMBINED, *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in SEPARATE)])
def test_an_engine_says_what_the_network_says(kind):
    name, changes = {**COMBINED, **SEPARATE}[kind]
    bundle = tiny_bundle(name, **changes)
    for converted, engine in convert_once(bundle, random_images(bundle, 6)):
        assert converted.metadata.verified.within()
        assert converted.metadata.verified.images == converted.metadata.verified.same_label == 6
        assert_same(engine, bundle)


class PaddedPool(torch.nn.Module):
    """The end of BiT's stem, where every number is negative: zeros from around are the largest at the edge."""

    def forward(self, images):
        x = torch.nn.functional.pad(images.float() - 300, (1, 1, 1, 1))
        return (torch.nn.functional.max_pool2d(x, 3, 2),)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, about its own parts
def test_zeros_around_a_pooling_stay_zeros_in_onnx():
    """Left to itself, ONNX Runtime's optimiser makes both one, and the edge negative."""
    images = torch.arange(2 * 64, dtype=torch.uint8).reshape(2, 1, 8, 8)
    shapes = ({0: torch.export.Dim("batch", min=1, max=MAX_BATCH_SIZE)},)
    program = torch.export.export(PaddedPool(), (images,), dynamic_shapes=shapes).run_decompositions({})
    content = ENGINES["onnx"].convert(program, ["pooled"], {}).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (found,) = session.run(["pooled"], {"images": images.numpy()})
    (expected,) = PaddedPool()(images)
    assert (expected[:, :, 0] == 0).all()
    np.testing.assert_array_equal(found, expected.numpy())


def test_chunks_cover_all_images():
    for count in range(1, 30):
        images = np.arange(count, dtype=np.uint8)[:, None]
        seen = []
        for part, chunk in split_chunks(images, 4):
            assert len(chunk) == (1 if count == 1 else 4)
            own = part.stop - part.start
            assert (chunk[own:] == 0).all()
            seen += chunk[:own, 0].tolist()
        assert seen == list(range(count))
