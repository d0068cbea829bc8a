"""`vitreous.load`: a trained model in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from vitreous.arguments import Count, checked
from vitreous.data.augment import normalise
from vitreous.data.opening import choose_split, open_dataset
from vitreous.data.shards.opening import is_shards
from vitreous.data.source import Split
from vitreous.data.view import IMAGE_TYPES, ImageInput, make_view
from vitreous.errors import UserError
from vitreous.explain.explanation import Explainer, Explanation
from vitreous.explain.request import ExplanationRequest, Head, Layer, Method, Point
from vitreous.inference.evaluation import Evaluation, evaluate_classifier
from vitreous.inference.memory_needs import check_explanation_memory
from vitreous.inference.opening import open_engine, open_model
from vitreous.inference.predict import Prediction
from vitreous.model.network import Network, TracesAttention, evaluating, require
from vitreous.model.trace import Trace
from vitreous.model.vit import ViT
from vitreous.verbs.predict import predict
from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class Model:
    """A model with its classes and its preprocessing, ready to use in a notebook."""

    bundle: Bundle

    @property
    def network(self) -> Network:
        """The network, of whichever family, in evaluation mode."""
        return self.bundle.model

    @property
    def vit(self) -> ViT:
        """The network of a Vision Transformer; refused for any other."""
        return require(self.bundle.model, ViT, "vit")

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its classes."""
        return self.bundle.labels

    def __repr__(self) -> str:
        return f"Model({self.bundle.summary()})"

    @checked
    def prepare(self, image: ImageInput) -> Tensor:
        """(1, C, H, W) float32: the network's input for an image, on its device, prepared as `predict` does it."""
        preprocess = self.bundle.preprocess
        return normalise(make_view(image, preprocess)[None].to(self.network.device), preprocess)

    @checked
    def trace(self, image: ImageInput, layers: Sequence[int] | None = None) -> Trace:
        """What the network computed for an image: a filled `Trace` of these layers; None for all.

        Layers count from 0, or from the end when negative. Only models with attention have a trace.

            trace = model.trace("cat.jpg", layers=[-1])
            seen = trace.attention[11][0, :, 0, trace.prefix :]  # (heads, patches) from the class token
            seen.view(-1, *trace.grid)  # (heads, rows, columns)
        """
        network, trace = require(self.network, TracesAttention, "trace"), Trace(layers)
        check_explanation_memory(self.bundle, "attention")
        with torch.inference_mode(), evaluating(self.network):
            network(self.prepare(image), trace=trace)
        return trace

    @overload
    def predict(  # type: ignore[overload-overlap]  # a str is a sequence of str too, and means one image
        self, image: ImageInput, top_k: int = 5
    ) -> Prediction: ...

    @overload
    def predict(self, image: Sequence[ImageInput], top_k: int = 5) -> list[Prediction]: ...

    @checked
    def predict(self, image: ImageInput | Sequence[ImageInput], top_k: Count = 5) -> Prediction | list[Prediction]:
        """The predicted classes of an image, best first; of a list, one prediction for each image.

        An image is a file, the bytes of one, a Pillow image, an array (H, W) or (H, W, C) uint8, or a tensor (H, W) or
        (C, H, W) uint8. In a list, a folder stands for all images in it.
        """
        if not isinstance(image, IMAGE_TYPES):
            return predict(self.bundle, image, top_k=top_k)
        if isinstance(image, str | Path) and (Path(image).is_dir() or is_shards(image)):
            what = "this is a folder" if Path(image).is_dir() else "these are shards"
            raise UserError(f"{image}: {what}, not an image; give it in a list: predict([{str(image)!r}]).")
        return predict(self.bundle, image, top_k=top_k)[0]

    @checked
    def evaluate(self, data: str | Path, *, split: Split | None = None) -> Evaluation:
        """Its accuracy and other metrics on data."""
        name, source = choose_split(open_dataset(data), split)
        return evaluate_classifier(open_engine(self.bundle, images=len(source)), name, source)

    @checked
    def explain(
        self,
        image: ImageInput,
        *,
        method: Method | None = None,
        layer: Layer | None = None,
        head: Head = "mean",
        target: str | None = None,
        query: Point | None = None,
    ) -> Explanation:
        """What it looked at in an image, on the image's own pixels; `ExplanationRequest` describes the arguments."""
        request = ExplanationRequest(method=method, layer=layer, head=head, target=target, query=query)
        explainer = Explainer(self.bundle, request)
        check_explanation_memory(self.bundle, explainer.method)
        return explainer.explain(image)


@checked
def load(source: str | Path, *, preprocess: str | None = None) -> Model:
    """The model in a bundle or run folder, in another project's file or folder, or of a name on the hub ("hf:...").

    One without a classifier can be explained and its network used; it has no labels to predict.
    """
    return Model(open_model(source, preprocess))
