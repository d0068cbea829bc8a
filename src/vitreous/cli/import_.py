"""`vitreous import`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import tyro

from vitreous.cli.terminal import Flag, print_json, printable


def import_(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")],
    bundle: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="BUNDLE")],
    preprocess: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None,
    labels: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None,
    image_size: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None,
    patch: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None,
    channels: Annotated[int | None, tyro.conf.arg(metavar="COUNT")] = None,
    classes: Annotated[int | None, tyro.conf.arg(metavar="COUNT")] = None,
    heads: Annotated[int | None, tyro.conf.arg(metavar="COUNT")] = None,
    epsilon: Annotated[float | None, tyro.conf.arg(metavar="NUMBER")] = None,
    part: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    json: Flag = False,
) -> None:
    """Make a bundle of anybody's ViT weights: Google, timm, Hugging Face, DeiT, DINO, DINOv2, MAE.

    Args:
        source: A .safetensors, .pth or .npz file, a Hugging Face or timm folder, or hf:organisation/model.
        bundle: The folder to write: new, empty, or a bundle, which is then replaced.
        preprocess: What differs from the source's own preprocessing, or from its family's usual one, such as
            "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic,size=224,resize=stretch".
        labels: The classes' names: a text file with one a line, or JSON.
        image_size: Side of the picture that the model sees; position embeddings are resampled to it.
        patch: Side of a patch; the projection is resampled to it as in FlexiViT, and the positions too.
        channels: 1 for grey pictures, 3 for colour, or any other number, for tensors; by timm's rule.
        classes: 0 leaves the classifier out; another number puts a new, empty one in its place.
        heads: Heads of each block, where the source does not tell and its width would mislead.
        epsilon: Another epsilon for every LayerNorm: timm's and Google's formats know 1e-6 alone.
        part: Which model of a training file that holds several, by its name there: student, teacher, model, model_ema.
            Without it the averaged one is taken, and the command says which others there are.
        json: Print the result as one JSON object, for programs.
    """
    from vitreous.jobs.convert import import_weights

    made = import_weights(
        source,
        bundle,
        preprocess=preprocess,
        labels=labels,
        image_size=image_size,
        patch=patch,
        channels=channels,
        classes=classes,
        heads=heads,
        epsilon=epsilon,
        part=part,
    )
    if json:
        print_json(asdict(made))
        return
    print(f"{made.description}, {made.parameters / 1e6:.1f} million parameters")
    print(f"preprocessing: {made.preprocess}")
    if made.labels:
        numbered = " (numbers, for the source has no names: give them with --labels FILE)"
        rest = ", ..." if len(made.labels) > 5 else ""
        print(f"classes: {printable(', '.join(made.labels[:5]))}{rest}{numbered if made.numbered else ''}")
    print(f"bundle:  {printable(made.bundle)}")
    use = "vitreous predict BUNDLE PICTURE" if made.labels else "vitreous fit DATA --weights BUNDLE"
    if made.channels not in (1, 3):
        use = 'vitreous.load("BUNDLE").network(images), in Python: picture files are read as grey or colour'
    print(f"use it:  {use.replace('BUNDLE', printable(made.bundle))}")
