"""`vitreous import` and `vitreous export`: weights from and for other programs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitreous.arguments import Count, OneOf, Range, SideLength, TokenMerge
from vitreous.cli.terminal import printable
from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError
from vitreous.inputs import read_json
from vitreous.storage.overwrite import check_apart, check_elsewhere, check_file, check_folder
from vitreous.verbs.options import engine_names
from vitreous.weights.labels import duplicate_names_note, read_labels
from vitreous.weights.markdown import code
from vitreous.weights.published import hub_name

if TYPE_CHECKING:
    from vitreous.config.data import Preprocess
    from vitreous.data.source import Data
    from vitreous.weights.bundle import Bundle

log = logging.getLogger("vitreous")

BUNDLE = frozenset({"config.json", "model.safetensors", "README.md"})
"""The files of a bundle, besides its manifest."""


def export_targets() -> list[str]:
    """The formats and engines that a model can be exported for."""
    from vitreous.weights.formats import FORMATS

    return [*(name for name, format in FORMATS.items() if format.write), *engine_names(converted=True)]


@dataclass(frozen=True)
class Imported:
    """The bundle that was written."""

    bundle: str
    description: str  # "ViT-Ti/16, 224, 1000 classes"
    parameters: int
    channels: int
    preprocess: str
    labels: tuple[str, ...]
    numbered: bool  # whether the labels are numbers, because no class names are known
    notes: tuple[str, ...]  # the recognised format, ignored keys, and assumptions


@dataclass(frozen=True)
class Import(Verb[Imported]):
    """Turn anyone's ViT weights into a bundle: Google, timm, Hugging Face, DeiT, DINO, DINOv2, MAE."""

    source: str | Path
    """SOURCE: A .safetensors, .pth or .npz file, a Hugging Face or timm folder, a name that `vitreous models --weights`
    lists, such as s16, or hf:organisation/model."""
    out: str | Path
    """BUNDLE: The folder to write: new, empty, or an earlier bundle, which is replaced."""
    _: KW_ONLY
    preprocess: Preprocess | str | None = None
    """TEXT: Changes to the source's preprocessing, or to what is usual for its kind, such as
    "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic,size=224,resize=stretch"."""
    labels: str | Path | Sequence[str] | None = None
    """FILE: The names of the classes: a text file with one per line, or JSON."""
    image_size: SideLength | None = None
    """PIXELS: Side of the model's input in pixels; position embeddings are resampled to it."""
    patch: SideLength | None = None
    """PIXELS: Side of a patch in pixels; the patch projection is resampled to it as in FlexiViT, and so are the
    positions."""
    channels: Count | None = None
    """COUNT: Input channels: 1 for grey images, 3 for colour, any other number for tensors; converted by timm's
    rule."""
    classes: Annotated[int, Range(0)] | None = None
    """COUNT: 0 drops the classifier; any other number replaces it with a new one, all zeros."""
    heads: Count | None = None
    """COUNT: Attention heads per block, if the source does not say and the usual number for its width is wrong."""
    epsilon: Annotated[float, Range(1e-30, 1)] | None = None
    """NUMBER: The epsilon of every LayerNorm. The formats of timm and Google allow at most 1e-6."""
    entry: str | None = None
    """NAME: Which model to take from a training file that holds several, by its name there: student, teacher, model,
    model_ema. Default: the averaged one; the command lists the others."""
    merge: TokenMerge | None = None
    """COUNT: How many tokens the model merges per block from then on: faster, and a little less accurate."""

    def run(self) -> Imported:
        from vitreous.model.network import MergesTokens, require
        from vitreous.weights.adapt import adapt
        from vitreous.weights.bundle import save_bundle
        from vitreous.weights.checkpoint import describe
        from vitreous.weights.source import open_weights, preprocess_text

        out = Path(self.out)
        check_elsewhere(out)
        check_folder(out, BUNDLE)
        opened = open_weights(self.source, self.preprocess, heads=self.heads, entry=self.entry)
        check_apart(out, opened.path)
        model, preprocess = adapt(
            opened.model,
            opened.preprocess,
            image_size=self.image_size,
            patch=self.patch,
            channels=self.channels,
            classes=self.classes,
            epsilon=self.epsilon,
        )
        if self.merge is not None:
            model = require(model, MergesTokens, f"merge={self.merge}").with_merge(self.merge)
        names = self._class_names(opened, model.config.classes)
        notes = list(opened.notes)
        if self.labels is not None and (repeated := duplicate_names_note(names)) is not None:
            log.warning("labels: %s", repeated)
            notes.append(f"labels: {repeated}")
        imported = Imported(
            bundle=str(out),
            description=describe("", model.config).strip(),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            channels=model.config.channels,
            preprocess=preprocess_text(preprocess),
            labels=names,
            numbered=self.labels is None and (opened.info.get("numbered") is True or len(opened.labels) != len(names)),
            notes=tuple(notes),
        )
        # no path of this machine in the model card
        source = hub_name(self.source) or Path(self.source).resolve().name
        found = [note.replace(str(opened.path), source) for note in opened.notes]
        info = {**opened.info}
        if found:
            info |= {"imported": source, "notes": found, "numbered": imported.numbered}
        card = import_card(source, found, imported.description, preprocess)
        save_bundle(out, model, preprocess, names, card=card, info=info, seen_images=opened.seen_images)
        return imported

    def _class_names(self, opened: Bundle, classes: int) -> tuple[str, ...]:
        if self.labels is None:
            return opened.labels if len(opened.labels) == classes else tuple(str(number) for number in range(classes))
        if isinstance(self.labels, str | Path):
            place, names = str(self.labels), read_labels(self.labels)
        else:
            place, names = "labels", tuple(self.labels)
        if len(names) != classes:
            raise UserError(f"{place}: has {len(names)} names for {classes} classifier outputs; give one for each.")
        return names

    def to_json(self, result: Imported) -> Any:
        return asdict(result)

    def show(self, result: Imported) -> None:
        print(f"{result.description}, {result.parameters / 1e6:.1f} million parameters")
        print(f"preprocessing: {result.preprocess}")
        if result.labels:
            numbered = " (numbers, since the source has no names; give them with --labels FILE)"
            rest = ", ..." if len(result.labels) > 5 else ""
            print(f"classes: {printable(', '.join(result.labels[:5]))}{rest}{numbered if result.numbered else ''}")
        print(f"bundle:  {printable(result.bundle)}")
        use = "vitreous predict BUNDLE IMAGE" if result.labels else "vitreous fit DATA --weights BUNDLE"
        if result.channels not in (1, 3):
            use = 'vitreous.load("BUNDLE").network(images), in Python: image files can only be read as grey or colour'
        print(f"use it:  {use.replace('BUNDLE', printable(result.bundle))}")


def import_card(source: str, notes: Sequence[str], description: str, preprocess: Preprocess) -> str:
    """README.md of an imported bundle, in Markdown."""
    from vitreous.weights.source import preprocess_text

    use = "vitreous predict FOLDER_OF_THIS_FILE image.jpg"
    if preprocess.channels not in (1, 3):  # other numbers of channels exist only as tensors
        use = "vitreous.load(FOLDER_OF_THIS_FILE).network(images)"
    return "\n".join(
        [
            f"# {description}",
            "",
            f"Imported by vitreous from {code(source)}; its licence and its data are those of that source.",
            "",
            *([f"- {code(note)}" for note in notes] or ["- a bundle"]),
            f"- preprocessing: {code(preprocess_text(preprocess))}",
            "",
            f"Use it: `{use}`.",
            "",
        ]
    )


@dataclass(frozen=True)
class Export(Verb[Path]):
    """Write a model in a format that other programs read: Hugging Face, timm, Google, OpenVINO or ONNX.

    What is written for OpenVINO or ONNX was compared with the network on images, and is refused where it differs.
    """

    model: str | Path | Bundle
    """MODEL: A bundle, a run folder, a published name such as s16, or anything that `vitreous import` reads."""
    out: str | Path
    """OUT: What to write: a folder that is new, empty or an earlier export; for google, a file that ends in .npz."""
    _: KW_ONLY
    to: Annotated[str, OneOf(export_targets)]
    """huggingface|timm|google|openvino|onnx: huggingface: a folder for from_pretrained, with its image processor. timm:
    a folder for local-dir. google: an .npz with the tensor names of the paper's code. openvino, onnx: a folder with the
    graph that the runtime computes, uint8 images in and probabilities out, which is a MODEL for predict, evaluate and
    bench too."""
    int8: bool = False
    """For openvino, compute the large products in 8-bit integers."""
    calibrate: str | Path | Data | None = None
    """DATA: Images from which int8 reads the ranges of activations. With labels of the model's classes the loss of
    accuracy is measured, else how often int8 predicts what float32 does."""
    verify: str | Path | Data | None = None
    """DATA: Images to compare predictions on; for int8 those on which accuracy is measured. Default: the val
    split of those to calibrate with, or their test split, or some images of the package's own."""
    max_drop: Annotated[float, Range(0, 100)] | None = None
    """POINTS: Points of accuracy that int8 may lose. Where plain quantization loses more, the costliest operations
    stay in float32; where even that does, nothing is written. Default: 0.5; of images without labels 2, in points of
    predictions that change."""
    merge: TokenMerge | None = None
    """COUNT: For openvino and onnx, how many tokens to merge per block. Default: as the model says."""
    preprocess: Preprocess | str | None = None
    """TEXT: For openvino and onnx, changes to the model's preprocessing, such as "size=384"."""

    def run(self) -> Path:
        from vitreous.inference.engine_folder import CARD, METADATA, save_engine
        from vitreous.inference.engines import ENGINES
        from vitreous.inference.opening import open_model, prepare_export
        from vitreous.weights.bundle import SEEN
        from vitreous.weights.formats import FORMATS, write_weights

        out = Path(self.out)
        files = FORMATS[self.to].files if self.to in FORMATS else {METADATA, CARD, SEEN, *ENGINES[self.to].files}
        if files:
            check_elsewhere(out)
            check_folder(out, frozenset(files))
        else:
            out = check_file(out)
        self._check_options()
        bundle = open_model(self.model, self.preprocess, self.merge)
        check_apart(out, bundle.path)
        if self.to in FORMATS:
            return write_weights(out, bundle, self.to)
        found = prepare_export(
            bundle,
            self.to,
            calibrate=self.calibrate,
            verify=self.verify,
            max_drop=self.max_drop,
            progress=self.active_callbacks.progress,
        )
        return save_engine(out, found)

    def _check_options(self) -> None:
        """Refuse int8 without images or for another runtime, and options that this format does not use."""
        from vitreous.inference.engines import ENGINES

        engine = ENGINES.get(self.to)
        if self.int8 and (engine is None or "int8" not in engine.precisions):
            raise UserError(f"int8: there is none for {self.to}; export to openvino, or leave it out.")
        if self.int8 and self.calibrate is None:
            raise UserError("int8: needs images to calibrate with; give calibrate.")
        for name in ("calibrate", "max_drop"):
            if getattr(self, name) is not None and not self.int8:
                raise UserError(f"{name}: only int8 needs it; ask for int8, or leave it out.")
        for name in ("verify", "merge", "preprocess"):
            if getattr(self, name) is not None and engine is None:
                engines = " or ".join(name for name, kind in ENGINES.items() if kind.files)
                raise UserError(f"{name}: only for an export to {engines}, not to {self.to}; leave it out.")

    def to_json(self, result: Path) -> Any:
        """{"path", "format"}, and for OpenVINO and ONNX "verified" and, in int8, "accuracy"."""
        from vitreous.inference.engine_folder import read_metadata
        from vitreous.weights.formats import FORMATS

        found: dict[str, Any] = {"path": str(result), "format": self.to}
        if self.to not in FORMATS:
            metadata = read_metadata(result)
            found |= {"verified": asdict(metadata.verified)}
            found |= {} if metadata.accuracy is None else {"accuracy": asdict(metadata.accuracy)}
        return found

    def show(self, result: Path) -> None:
        from vitreous.inference.engine_folder import read_metadata
        from vitreous.inference.engines import ENGINES
        from vitreous.weights.formats import FORMATS

        place, auto = printable(str(result)), ""
        print(f"written: {place}")
        if self.to == "huggingface":
            classifies = "ForImageClassification" in read_json(result / "config.json")["architectures"][0]
            auto = "AutoModelForImageClassification" if classifies else "AutoModel"
        if self.to in FORMATS:
            open_with = FORMATS[self.to].open_with
        else:
            open_with = f"vitreous predict {{out}} image.jpg, or {ENGINES[self.to].open_with}"
            metadata = read_metadata(result)
            verified = metadata.verified
            print(
                f"verified: {verified.same_label:,} of {verified.images:,} images have the same label as in PyTorch, "
                f"{verified.equal:,} the same numbers up to rounding; probabilities differ by at most "
                f"{verified.max_probability_difference:.2g}"
            )
            if (accuracy := metadata.accuracy) is not None:
                kept = "; the costliest operations stayed in float32" if metadata.accuracy_control else ""
                print(f"int8, on held-out images: {accuracy}{kept}")
        print(f"open it: {open_with.format(out=place, auto=auto)}")


import_weights = verb(Import, "import_weights")
export_weights = verb(Export, "export_weights")
