"""`vitreous export`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from vitreous.arguments import Merge
from vitreous.cli.terminal import printable
from vitreous.cli.verb import Verb, verb
from vitreous.config.engine import ConvertedEngine
from vitreous.errors import UserError
from vitreous.wording import Range

if TYPE_CHECKING:
    from vitreous.config.data import Preprocess
    from vitreous.data.source import Data
    from vitreous.weights.bundle import Bundle

OPEN_WITH = {
    "huggingface": 'transformers.{auto}.from_pretrained("{out}")',
    "timm": 'timm.create_model("local-dir:{out}", pretrained=True)',
    "google": 'numpy.load("{out}")',
}


@dataclass(frozen=True)
class Export(Verb[Path]):
    """Write a model in a format that other programs read: Hugging Face, timm, Google, OpenVINO or ONNX.

    What is written for OpenVINO or ONNX was compared with the network on images, and is refused where it differs.
    """

    source: str | Path | Bundle
    """MODEL: A bundle, a run folder, or anything that `vitreous import` reads."""
    out: str | Path
    """OUT: What to write: a folder that is new, empty or an earlier export; for google, a file that ends in .npz."""
    _: KW_ONLY
    to: Literal["huggingface", "timm", "google", ConvertedEngine]
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
    """POINTS: Points of accuracy that int8 may lose. Where plain quantization loses more, the costliest operations
    stay in float32; where even that does, nothing is written. Default: 0.5."""
    merge: Merge | None = None
    """COUNT: For openvino and onnx, how many tokens to merge per block. Default: as the model says."""
    preprocess: Preprocess | str | None = None
    """TEXT: For openvino and onnx, changes to the model's preprocessing, such as "size=384"."""
    json_help: ClassVar[str] = ""

    def run(self) -> Path:
        """Write it, and return where."""
        from vitreous.inference.engine_folder import CARD, METADATA, save_engine
        from vitreous.inference.engines import ENGINES
        from vitreous.inference.opening import open_model, prepare_export
        from vitreous.storage.overwrite import check_apart, check_elsewhere, check_file, check_folder
        from vitreous.weights.formats import FORMATS, write_weights

        out = Path(self.out)
        if self.to == "google":
            out = check_file(out)
        else:
            files = FORMATS[self.to].files if self.to in FORMATS else {METADATA, CARD, *ENGINES[self.to].files}
            check_elsewhere(out)
            check_folder(out, frozenset(files))
        self._check_options()
        bundle = open_model(self.source, self.preprocess, self.merge)
        check_apart(out, bundle.path)
        if self.to != "openvino" and self.to != "onnx":
            return write_weights(out, bundle, self.to)
        found = prepare_export(bundle, self.to, calibrate=self.calibrate, verify=self.verify, max_drop=self.max_drop)
        return save_engine(out, found)

    def _check_options(self) -> None:
        """Refuse int8 without images or for another runtime, and options that this format does not use."""
        from vitreous.inference.engines import ENGINES

        engine = ENGINES.get(self.to)
        if self.int8 and (engine is None or "int8" not in engine.precisions):
            raise UserError(f"int8: there is none for {self.to}; export to openvino, or leave it out.")
        if self.int8 and self.calibrate is None:
            raise UserError("int8: needs labelled images to calibrate with; give calibrate.")
        for name in ("calibrate", "max_drop"):
            if getattr(self, name) is not None and not self.int8:
                raise UserError(f"{name}: only int8 needs it; ask for int8, or leave it out.")
        for name in ("verify", "merge", "preprocess"):
            if getattr(self, name) is not None and engine is None:
                engines = " or ".join(name for name, kind in ENGINES.items() if kind.files)
                raise UserError(f"{name}: only for an export to {engines}, not to {self.to}; leave it out.")

    def show(self, result: Path) -> None:
        """Where it is, how its predictions compare with the network's, and how to open it."""
        from vitreous.inference.engine_folder import read_metadata
        from vitreous.inference.engines import ENGINES
        from vitreous.inputs import read_json

        place, auto = printable(str(result)), ""
        print(f"written: {place}")
        if self.to == "huggingface":
            classifies = "ForImageClassification" in read_json(result / "config.json")["architectures"][0]
            auto = "AutoModelForImageClassification" if classifies else "AutoModel"
        open_with = OPEN_WITH.get(self.to) or f"vitreous predict {{out}} image.jpg, or {ENGINES[self.to].open_with}"
        if self.to in ENGINES:
            metadata = read_metadata(result)
            verified = metadata.verified
            print(
                f"verified: {verified.same_label:,} of {verified.images:,} images have the same label as in PyTorch, "
                f"{verified.equal:,} the same numbers up to rounding; probabilities differ by at most "
                f"{verified.max_probability_difference:.2g}"
            )
            if (accuracy := metadata.accuracy) is not None:
                kept = "; the costliest operations stayed in float32" if metadata.accuracy_control else ""
                images = f"{accuracy.images:,} held-out images"
                print(f"accuracy: {accuracy.int8:.2%} in int8, {accuracy.fp32:.2%} in float32, of {images}{kept}")
        print(f"open it: {open_with.format(out=place, auto=auto)}")


export_weights = verb(Export, "export_weights")
