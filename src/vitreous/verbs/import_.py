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
from vitreous.errors import UserError
from vitreous.wording import Range

if TYPE_CHECKING:
    from vitreous.config.data import Preprocess
    from vitreous.weights.bundle import Bundle

log = logging.getLogger("vitreous")

BUNDLE = frozenset({"config.json", "model.safetensors", "README.md"})
"""What a bundle holds, besides its manifest."""


@dataclass(frozen=True)
class Imported:
    """The bundle that was written."""

    bundle: str
    description: str
    """ "ViT-Ti/16, 224, 1000 classes"."""
    parameters: int
    channels: int
    preprocess: str
    labels: tuple[str, ...]
    numbered: bool
    """Whether the labels are numbers, because neither the source nor the caller has the classes' names."""
    notes: tuple[str, ...]
    """As what the source was recognised, its ignored keys, and what was assumed."""


@dataclass(frozen=True)
class Import(Verb[Imported]):
    """Turn anyone's ViT weights into a bundle: Google, timm, Hugging Face, DeiT, DINO, DINOv2, MAE."""

    source: str | Path
    """SOURCE: A .safetensors, .pth or .npz file, a Hugging Face or timm folder, or hf:organisation/model."""
    out: str | Path
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
    """COUNT: Input channels: 1 for grey images, 3 for colour, any other number for tensors; converted by timm's
    rule."""
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
        """Write the bundle; `open_weights` says what a source may be, and `adapt` how it is resampled."""
        from vitreous.model.network import MergesTokens, require
        from vitreous.storage.overwrite import check_apart, check_elsewhere, check_folder
        from vitreous.weights.adapt import adapt
        from vitreous.weights.bundle import save_bundle
        from vitreous.weights.checkpoint import describe
        from vitreous.weights.labels import repeated_names
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
        if self.labels is not None and (repeated := repeated_names(names)) is not None:
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
        source, found = _without_folders(str(self.source), opened)
        info = {**opened.info}
        if found:
            info |= {"imported": source, "notes": found, "numbered": imported.numbered}
        card = import_card(source, found, imported.description, preprocess)
        save_bundle(out, model, preprocess, names, card=card, info=info)
        return imported

    def _class_names(self, opened: Bundle, classes: int) -> tuple[str, ...]:
        """The given names, else the source's, else numbers."""
        from vitreous.weights.labels import read_labels

        if self.labels is None:
            return opened.labels if len(opened.labels) == classes else tuple(str(number) for number in range(classes))
        is_file = isinstance(self.labels, str | Path)
        names = read_labels(self.labels) if isinstance(self.labels, str | Path) else tuple(self.labels)
        if len(names) != classes:
            place = self.labels if is_file else "labels"
            raise UserError(f"{place}: has {len(names)} names for {classes} classifier outputs; give one for each.")
        return names

    def to_json(self, result: Imported) -> Any:
        """One object."""
        return asdict(result)

    def show(self, result: Imported) -> None:
        """What it is, how it wants its images, its classes, and how to use it."""
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


def _without_folders(source: str, opened: Bundle) -> tuple[str, list[str]]:
    """The name of the source, and the notes about it, without folders of this machine."""
    from vitreous.weights.hub import PREFIX

    name = source if source.startswith(PREFIX) else Path(source).resolve().name
    return name, [note.replace(str(opened.path), name) for note in opened.notes]


def import_card(source: str, notes: Sequence[str], description: str, preprocess: Preprocess) -> str:
    """README.md of an imported bundle, in Markdown."""
    from vitreous.weights.markdown import code
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


import_weights = verb(Import, "import_weights")
