"""`vitreous explain`: what a model saw in an image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from vitreous.arguments import checked
from vitreous.config.data import Preprocess
from vitreous.data.decode import ImageError
from vitreous.data.view import ImageInput
from vitreous.explain.explanation import Explanation, Head, Layer, Question
from vitreous.explain.methods import Method
from vitreous.inference.needs import check_explanation_memory
from vitreous.inference.opening import list_images, open_model
from vitreous.weights.bundle import Bundle


@checked
def explain(
    model: str | Path | Bundle,
    image: ImageInput,
    *,
    method: Method | None = None,
    layer: Layer | None = None,
    head: Head = "mean",
    target: str | None = None,
    query: tuple[float, float] | None = None,
    preprocess: Preprocess | str | None = None,
) -> Explanation:
    """What the model saw in an image, on the image's own pixels: resizing, cropping and the camera's turn undone.

    model: a bundle, a run, or whatever `vitreous.load` takes.
    image: a file, a file's bytes, an image of Pillow's, an array (H, W) or (H, W, C) uint8, or such
        a tensor, (H, W) or (C, H, W).
    method: attention, rollout, relevance, gradcam or occlusion; None for relevance, or attention without a classifier;
        for a model without attention, gradcam.
    layer: whose attention (attention), up to which (rollout), from which on (relevance), at whose entrance (gradcam);
        "all" for each of them; None for the one that suits the method.
    head: of attention, one head, their mean, or all of them.
    target: the class to explain; None for the likeliest.
    query: x, y of a place in the image, in its pixels: what that place attends to.
    """
    bundle = open_model(model, preprocess)
    question = Question(bundle, method=method, layer=layer, head=head, target=target, query=query)
    check_explanation_memory(bundle, question.method)
    return question.answer(image)


@checked
def explain_each(
    model: str | Path | Bundle,
    images: str | Path | Sequence[str | Path],
    *,
    method: Method | None = None,
    layer: Layer | None = None,
    head: Head = "mean",
    target: str | None = None,
    query: tuple[float, float] | None = None,
    preprocess: Preprocess | str | None = None,
) -> Iterator[Explanation | ImageError]:
    """Explanations of images, and of all in folders, one at a time; of one that cannot be read, why.

    The arguments are those of `explain`; a mistake in them is told before the first image is read.
    """
    paths = list_images(images)
    bundle = open_model(model, preprocess)
    question = Question(bundle, method=method, layer=layer, head=head, target=target, query=query)
    check_explanation_memory(bundle, question.method)
    return (_answer_or_error(question, path) for path in paths)


def _answer_or_error(question: Question, path: Path) -> Explanation | ImageError:
    try:
        return question.answer(path)
    except ImageError as error:
        return error
