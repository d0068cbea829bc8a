"""`vitreous import`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitreous.arguments import Count, Merge, Pixels
from vitreous.cli.terminal import printable
from vitreous.cli.verb import Verb, verb
from vitreous.config.data import Preprocess
from vitreous.errors import UserError
from vitreous.wording import Range

if TYPE_CHECKING:
    from vitreous.weights.bundle import Bundle

log = logging.getLogger("vitreous")

BUNDLE_FILES = frozenset({"config.json", "model.safetensors", "README.md"})
"""What a bundle holds, besides its manifest."""


@dataclass(frozen=True)
class Imported:
    """What was made of a source."""

    bundle: str
    description: str
    """ "ViT-Ti/16, 224, 1000 classes"."""
    parameters: int
    channels: int
    preprocess: str
    labels: tuple[str, ...]
    numbered: bool
    """The labels are numbers, for nobody said the classes' names."""
    notes: tuple[str, ...]
    """What the source was taken for, what was ignored, what was assumed."""


@dataclass(frozen=True)
class Import(Verb[Imported]):
    """Turn anyone's ViT weights into a bundle: Google, timm, Hugging Face, DeiT, DINO, DINOv2, MAE."""

    source: str | Path
    """SOURCE: A .safetensors, .pth or .npz file, a Hugging Face or timm folder, or hf:organisation/model."""
    bundle: str | Path
    """BUNDLE: The folder to write: new, empty, or an earlier bundle, which is replaced."""
    _: KW_ONLY
    preprocess: Preprocess | str | None = None
    """TEXT: Changes to the source's preprocessing, or to what is usual for its kind, such as
    "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic,size=224,resize=stretch"."""
    labels: str | Path | Sequence[str] | None = None
    """FILE: The names of the classes: a text file with one per line, or JSON."""
    image_size: Pixels | None = None
    """PIXELS: Side of the model's input in pixels; position embeddings are resampled to it."""
    patch: Pixels | None = None
    """PIXELS: Side of a patch in pixels; the patch projection is resampled to it as in FlexiViT, and so are the
    positions."""
    channels: Count | None = None
    """COUNT: Input channels: 1 for grey images, 3 for colour, any other number for tensors, by timm's rule."""
    classes: Annotated[int, Range(0)] | None = None
    """COUNT: 0 drops the classifier; any other number replaces it with a new one, all zeros."""
    heads: Count | None = None
    """COUNT: Attention heads per block, if the source does not say and the usual number for its width is wrong."""
    epsilon: Annotated[float, Range(1e-30, 1)] | None = None
    """NUMBER: The epsilon of every LayerNorm. The formats of timm and Google allow only 1e-6."""
    entry: str | None = None
    """NAME: Which model to take from a training file that holds several, by its name there: student, teacher, model,
    model_ema. Default: the averaged one; the command lists the others."""
    merge: Merge | None = None
    """COUNT: How many tokens the model merges per block from then on: faster, and a little less accurate."""

    def run(self) -> Imported:
        """Write a bundle of the weights, and say what they were taken for."""
        from vitreous.model.network import MergesTokens, require
        from vitreous.storage.overwrite import check_apart, check_elsewhere, check_folder
        from vitreous.weights.adapt import adapt
        from vitreous.weights.bundle import save_bundle
        from vitreous.weights.foreign import describe
        from vitreous.weights.labels import repeated_names
        from vitreous.weights.source import open_weights, preprocess_text

        out = Path(self.bundle)
        check_elsewhere(out)
        check_folder(out, BUNDLE_FILES)
        opened = open_weights(self.source, self.preprocess, heads=self.heads, entry=self.entry)
        check_apart(out, opened.path)
        model, prepared = adapt(
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
        names = _names(self.labels, opened, model.config.classes)
        repeated = repeated_names(names) if self.labels is not None else None
        if repeated is not None:
            log.warning("labels: %s", repeated)
        made = Imported(
            bundle=str(out),
            description=describe("", model.config).strip(),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            channels=model.config.channels,
            preprocess=preprocess_text(prepared),
            labels=names,
            numbered=self.labels is None and (opened.info.get("numbered") is True or len(opened.labels) != len(names)),
            notes=opened.notes if repeated is None else (*opened.notes, f"labels: {repeated}"),
        )
        name, notes = _without_places(str(self.source), opened)
        info = {**opened.info, "imported": name, "notes": notes, "numbered": made.numbered} if notes else opened.info
        save_bundle(out, model, prepared, names, card=_card(name, notes, made.description, prepared), info=info)
        return made

    def to_json(self, result: Imported) -> Any:
        """Every field."""
        return asdict(result)

    def show(self, result: Imported) -> None:
        """What it is, and how to use it."""
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


def _without_places(source: str, opened: Bundle) -> tuple[str, list[str]]:
    """What the source is called, and what was found out about it, without folders of this machine."""
    from vitreous.weights import hub

    name = source if source.startswith(hub.PREFIX) else Path(source).resolve().name
    return name, [note.replace(str(opened.path), name) for note in opened.notes]


def _names(given: str | Path | Sequence[str] | None, opened: Bundle, classes: int) -> tuple[str, ...]:
    """The classes' names: those that were given, else the source's, else numbers."""
    from vitreous.weights.labels import read_labels

    if given is None:
        return opened.labels if len(opened.labels) == classes else tuple(str(number) for number in range(classes))
    names = read_labels(given) if isinstance(given, str | Path) else tuple(given)
    if len(names) != classes:
        place = given if isinstance(given, str | Path) else "labels"
        raise UserError(f"{place}: has {len(names)} names, and the classifier {classes} outputs; give one for each.")
    return names


def _card(source: str, notes: Sequence[str], description: str, preprocess: Preprocess) -> str:
    from vitreous.weights.markdown import code
    from vitreous.weights.source import preprocess_text

    files = preprocess.channels in (1, 3)  # of other numbers there are only tensors
    use = (
        "vitreous predict FOLDER_OF_THIS_FILE image.jpg"
        if files
        else "vitreous.load(FOLDER_OF_THIS_FILE).network(images)"
    )
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


import_weights = verb(Import)
