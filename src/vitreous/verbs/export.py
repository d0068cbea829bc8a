"""`vitreous export`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from vitreous.arguments import Merge
from vitreous.cli.terminal import printable
from vitreous.cli.verb import Verb, verb
from vitreous.config.data import Preprocess
from vitreous.errors import UserError
from vitreous.wording import Range

if TYPE_CHECKING:
    from vitreous.data.source import Data
    from vitreous.weights.bundle import Bundle

Format = Literal["huggingface", "timm", "google", "openvino", "onnx"]

HOW_TO_OPEN = {
    "huggingface": 'transformers.{auto}.from_pretrained("{out}")',
    "timm": 'timm.create_model("local-dir:{out}", pretrained=True)',
    "google": 'numpy.load("{out}")',
    "openvino": 'vitreous predict {out} image.jpg, or openvino.Core().compile_model("{out}/model.xml")',
    "onnx": 'vitreous predict {out} image.jpg, or onnxruntime.InferenceSession("{out}/model.onnx")',
}


@dataclass(frozen=True)
class Export(Verb[Path]):
    """Write a model in a format that other programs read: Hugging Face, timm, Google, OpenVINO or ONNX.

    What is written for OpenVINO or ONNX was compared with the network on images, and is refused where it differs.
    """

    bundle: str | Path | Bundle
    """BUNDLE: A bundle, a run folder, or anything that `vitreous import` reads."""
    out: str | Path
    """OUT: What to write: a folder that is new, empty or an earlier export; for google, a file that ends in .npz."""
    _: KW_ONLY
    to: Format
    """huggingface: a folder for from_pretrained, with its image processor. timm: a folder for local-dir. google: an
    .npz with the tensor names of the paper's code. openvino, onnx: a folder with the graph that the runtime computes,
    uint8 images in and probabilities out, which is a MODEL for predict, evaluate and bench too."""
    int8: bool = False
    """For openvino, compute the large products in 8-bit integers."""
    calibrate: str | Path | Data | None = None
    """DATA: Labelled images, from which int8 reads the ranges of activations."""
    verify: str | Path | Data | None = None
    """DATA: Images to compare predictions on; for int8 labelled ones, on which accuracy is measured. Default: the val
    split of those to calibrate with, or their test split, or some images of the package's own."""
    max_drop: Annotated[float, Range(0, 100)] | None = None
    """POINTS: Points of accuracy that int8 may lose. Where plain quantization loses more, the costliest operations stay
    in float32; where even that does, nothing is written. Default: 0.5."""
    merge: Merge | None = None
    """COUNT: For openvino and onnx, how many tokens to merge per block. Default: as the model says."""
    preprocess: Preprocess | str | None = None
    """TEXT: For openvino and onnx, changes to the model's preprocessing, such as "size=384"."""
    json_help: ClassVar[str] = ""

    def run(self) -> Path:
        """Write the model, and return where."""
        from vitreous.inference.engine_folder import save_engine
        from vitreous.inference.export import prepare_export
        from vitreous.inference.opening import open_model
        from vitreous.storage.overwrite import check_apart
        from vitreous.weights.writers import WRITERS

        out = self._check()
        bundle = open_model(self.bundle, self.preprocess, self.merge)
        check_apart(out, bundle.path)
        if self.to == "openvino" or self.to == "onnx":
            found = prepare_export(
                bundle, self.to, calibrate=self.calibrate, verify=self.verify, max_drop=self.max_drop
            )
            return save_engine(out, found.model, found.metadata)
        family = bundle.model.config.family
        if family not in WRITERS[self.to]:
            others = " or ".join(repr(name) for name, writers in WRITERS.items() if family in writers)
            instead = f"choose {others}" if others else "use its bundle as it is"
            raise UserError(
                f"to={self.to!r}: there are no networks of the family {family!r} in this format; {instead}."
            )
        return WRITERS[self.to][family](out, bundle.model, bundle.preprocess, bundle.labels, bundle.info)

    def _check(self) -> Path:
        """The place to write to; options that do nothing, or int8 without images, are refused before any work."""
        from vitreous.inference.engine_folder import CARD, METADATA
        from vitreous.inference.runtime import RUNTIMES
        from vitreous.storage.overwrite import check_elsewhere, check_file, check_folder
        from vitreous.weights.writers import FOLDERS

        if self.to == "google":
            out = check_file(self.out)
        else:
            out = Path(self.out)
            check_elsewhere(out)
            runtimes = {name: frozenset({METADATA, CARD, *runtime.files}) for name, runtime in RUNTIMES.items()}
            check_folder(out, {**FOLDERS, **runtimes}[self.to])
        if self.int8 and (self.to not in RUNTIMES or RUNTIMES[self.to].quantize is None):
            raise UserError(f"int8: there is none for {self.to}; export to openvino, or leave it out.")
        if self.int8 and self.calibrate is None:
            raise UserError("int8: needs labelled images to calibrate with; give calibrate.")
        for name in ("calibrate", "max_drop"):
            if getattr(self, name) is not None and not self.int8:
                raise UserError(f"{name}: only int8 needs it; ask for int8, or leave it out.")
        for name in ("verify", "merge", "preprocess"):
            if getattr(self, name) is not None and self.to not in RUNTIMES:
                raise UserError(
                    f"{name}: only for an export to {' or '.join(RUNTIMES)}, not to {self.to}; leave it out."
                )
        return out

    def show(self, result: Path) -> None:
        """Where it is, how its predictions compare with the network's, and how others open it."""
        from vitreous.inference.engine_folder import read_metadata
        from vitreous.inference.opening import open_model

        place = printable(str(result))
        print(f"written: {place}")
        if self.to in ("openvino", "onnx"):
            metadata = read_metadata(result)
            checked = metadata.verified
            print(
                f"verified: {checked.same_label:,} of {checked.images:,} images have the same label as in PyTorch, "
                f"{checked.equal:,} the same numbers up to rounding; probabilities differ by at most "
                f"{checked.max_probability_difference:.2g}"
            )
            if (accuracy := metadata.accuracy) is not None:
                kept = "; the costliest operations stayed in float32" if metadata.accuracy_control else ""
                images = f"{accuracy.images:,} held-out images"
                print(f"accuracy: {accuracy.int8:.2%} in int8, {accuracy.fp32:.2%} in float32, of {images}{kept}")
        auto = "AutoModel"
        if self.to == "huggingface" and open_model(self.bundle).labels:
            auto = "AutoModelForImageClassification"
        print(f"open it: {HOW_TO_OPEN[self.to].format(out=place, auto=auto)}")


export_weights = verb(Export)
