"""`vitreous import`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import tyro

from vitreous.arguments import Count, Merge, Pixels
from vitreous.cli.terminal import Flag, option, print_json, printable
from vitreous.wording import Range


def import_(
    source: Annotated[str, tyro.conf.Positional, option("SOURCE")],
    bundle: Annotated[str, tyro.conf.Positional, option("BUNDLE")],
    preprocess: Annotated[str | None, option("TEXT")] = None,
    labels: Annotated[str | None, option("FILE")] = None,
    image_size: Annotated[Pixels | None, option("PIXELS")] = None,
    patch: Annotated[Pixels | None, option("PIXELS")] = None,
    channels: Annotated[Count | None, option("COUNT")] = None,
    classes: Annotated[Annotated[int, Range(0)] | None, option("COUNT")] = None,
    heads: Annotated[Count | None, option("COUNT")] = None,
    epsilon: Annotated[Annotated[float, Range(1e-30, 1)] | None, option("NUMBER")] = None,
    entry: Annotated[str | None, option("NAME")] = None,
    merge: Annotated[Merge | None, option("COUNT")] = None,
    json: Flag = False,
) -> None:
    """Turn anyone's ViT weights into a bundle: Google, timm, Hugging Face, DeiT, DINO, DINOv2, MAE.

    Args:
        source: A .safetensors, .pth or .npz file, a Hugging Face or timm folder, or hf:organisation/model.
        bundle: The folder to write: new, empty, or an earlier bundle, which is replaced.
        preprocess: Changes to the source's preprocessing, or to what is usual for its kind, such as
            "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic,size=224,resize=stretch".
        labels: The names of the classes: a text file with one per line, or JSON.
        image_size: Side of the model's input in pixels; position embeddings are resampled to it.
        patch: Side of a patch in pixels; the patch projection is resampled to it as in FlexiViT, and so are the
            positions.
        channels: Input channels: 1 for grey images, 3 for colour, any other number for tensors; converted by timm's
            rule.
        classes: 0 drops the classifier; any other number replaces it with a new one, all zeros.
        heads: Attention heads per block, if the source does not say and the usual number for its width is wrong.
        epsilon: The epsilon of every LayerNorm. The formats of timm and Google allow only 1e-6.
        entry: Which model to take from a training file that holds several, by its name there: student, teacher, model,
            model_ema. Default: the averaged one; the command lists the others.
        merge: How many tokens the model merges per block from then on: faster, and a little less accurate.
        json: Print one JSON object.
    """
    from vitreous.jobs.import_ import import_weights

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
        entry=entry,
        merge=merge,
    )
    if json:
        print_json(asdict(made))
        return
    print(f"{made.description}, {made.parameters / 1e6:.1f} million parameters")
    print(f"preprocessing: {made.preprocess}")
    if made.labels:
        numbered = " (numbers, since the source has no names; give them with --labels FILE)"
        rest = ", ..." if len(made.labels) > 5 else ""
        print(f"classes: {printable(', '.join(made.labels[:5]))}{rest}{numbered if made.numbered else ''}")
    print(f"bundle:  {printable(made.bundle)}")
    use = "vitreous predict BUNDLE IMAGE" if made.labels else "vitreous fit DATA --weights BUNDLE"
    if made.channels not in (1, 3):
        use = 'vitreous.load("BUNDLE").network(images), in Python: image files can only be read as grey or colour'
    print(f"use it:  {use.replace('BUNDLE', printable(made.bundle))}")
