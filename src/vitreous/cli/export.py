"""`vitreous export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitreous.arguments import Merge
from vitreous.cli.terminal import Flag, option, printable
from vitreous.wording import Range

_OPEN = {
    "huggingface": 'transformers.{auto}.from_pretrained("{out}")',
    "timm": 'timm.create_model("local-dir:{out}", pretrained=True)',
    "google": 'numpy.load("{out}")',
    "openvino": 'vitreous predict {out} image.jpg, or openvino.Core().compile_model("{out}/model.xml")',
    "onnx": 'vitreous predict {out} image.jpg, or onnxruntime.InferenceSession("{out}/model.onnx")',
}


def export(
    bundle: Annotated[str, tyro.conf.Positional, option("BUNDLE")],
    out: Annotated[str, tyro.conf.Positional, option("OUT")],
    to: Annotated[
        Literal["huggingface", "timm", "google", "openvino", "onnx"], option("huggingface|timm|google|openvino|onnx")
    ],
    int8: Flag = False,
    calibrate: Annotated[str | None, option("DATA")] = None,
    verify: Annotated[str | None, option("DATA")] = None,
    max_drop: Annotated[Annotated[float, Range(0, 100)] | None, option("POINTS")] = None,
    merge: Annotated[Merge | None, option("COUNT")] = None,
    preprocess: Annotated[str | None, option("TEXT")] = None,
) -> None:
    """Write a model in a format that other programs read: Hugging Face, timm, Google, OpenVINO or ONNX.

    What is written for OpenVINO or ONNX was compared with the network on images, and is refused where it differs.

    Args:
        bundle: A bundle, a run folder, or anything that `vitreous import` reads.
        out: What to write: a folder that is new, empty or an earlier export; for google, a file that ends in .npz.
        to: huggingface: a folder for from_pretrained, with its image processor. timm: a folder for local-dir. google:
            an .npz with the tensor names of the paper's code. openvino, onnx: a folder with the graph that the runtime
            computes, uint8 images in and probabilities out, which is a MODEL for predict, evaluate and bench too.
        int8: For openvino, compute the large products in 8-bit integers.
        calibrate: Labelled images, from which int8 reads the ranges of activations.
        verify: Images to compare answers on; for int8 labelled ones, on which accuracy is measured. Default: the val
            split of those to calibrate with, or their test split, or some images of the package's own.
        max_drop: Points of accuracy that int8 may lose. Where plain quantisation loses more, the costliest operations
            stay in float32; where even that does, nothing is written. Default: 0.5.
        merge: For openvino and onnx, how many tokens to merge per block. Default: as the model says.
        preprocess: For openvino and onnx, changes to the model's preprocessing, such as "size=384".
    """
    from vitreous.inference.opening import open_model
    from vitreous.jobs.export import export_weights

    opened = open_model(bundle)
    written = export_weights(
        opened,
        out,
        to,
        int8=int8,
        calibrate=calibrate,
        verify=verify,
        max_drop=max_drop,
        merge=merge,
        preprocess=preprocess,
    )
    place = printable(str(written))
    auto = "AutoModelForImageClassification" if opened.labels else "AutoModel"
    print(f"written: {place}")
    if to in ("openvino", "onnx"):
        _show_proof(written)
    print(f"open it: {_OPEN[to].format(out=place, auto=auto)}")


def _show_proof(folder: Path) -> None:
    """How its answers compare with the network's."""
    from vitreous.inference.folder import read_about

    about = read_about(folder)
    checked = about.verified
    print(
        f"verified: {checked.same_label:,} of {checked.images:,} images have the same label as in PyTorch, "
        f"{checked.equal:,} the same numbers up to rounding; probabilities differ by at most "
        f"{checked.worst_probability:.2g}"
    )
    if (accuracy := about.accuracy) is not None:
        print(
            f"accuracy: {accuracy.int8:.2%} in int8, {accuracy.fp32:.2%} in float32, of {accuracy.images:,} images"
            + ("; the costliest operations stayed in float32" if about.accuracy_aware else "")
        )
