"""A model looked at depth by depth, while images stream through it.

Each layer's attention and tokens are reduced as soon as they exist. What stays of a batch are numbers, of an image the
mean of its patch tokens at each depth. Depth 0 is the embedding, depth l the output of block l. Letters in shapes:
B images, h heads, N patches, D width, L layers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitreous.data.batch import Rows
from vitreous.errors import UserError
from vitreous.explain.analysis.homogeneity import (
    depth_similarity,
    head_similarity,
    mean_cosine,
    mutual_information,
    patch_attention,
    query_similarity,
)
from vitreous.explain.analysis.numbers import Measures, Table, Values
from vitreous.explain.analysis.representation import (
    diagonal,
    effective_rank,
    log_amplitude,
    log_spectrum,
    singular_values,
)
from vitreous.explain.attention import cell_distances, mean_distance
from vitreous.model.trace import Trace
from vitreous.model.vit import ViT

SPECTRUM_IMAGES = 64
"""The tokens' singular values are costly and hardly differ between images: so many are enough."""


class _Pooling(Trace):
    """Keeps of each depth the mean of the patch tokens, (B, D)."""

    def __init__(self) -> None:
        super().__init__(None, attention=False)

    def record_tokens(self, layer: int, tokens: Tensor) -> None:
        if not torch.isfinite(tokens).all():
            raise UserError(
                f"gives tokens that are not numbers, from layer {layer} on: its weights are damaged, or its training "
                "diverged."
            )
        self.tokens[layer] = tokens[:, self.prefix :].mean(dim=1)

    def depths(self) -> Tensor:
        """(B, L + 1, D)."""
        assert self.embedded is not None
        pooled = [self.tokens[layer] for layer in sorted(self.tokens)]
        return torch.stack([self.embedded[:, self.prefix :].mean(dim=1), *pooled], dim=1)


class _Reading(_Pooling):
    """Reduces each layer to sums over the batch's images."""

    def __init__(self, patch: int, spectra: int) -> None:
        super().__init__()
        self.wants_attention = True
        self.patch = patch
        self.spectra = spectra
        """Of how many images of this batch the singular values are wanted."""
        self.sums: dict[str, dict[int, Tensor]] = defaultdict(dict)
        """Name and depth to a sum over images."""

    def record_attention(self, layer: int, attention: Tensor) -> None:
        among = patch_attention(attention, self.prefix)
        depth = layer + 1
        between = cell_distances(self.grid, self.patch).to(among)
        self.sums["attention_distance"][depth] = mean_distance(among, between).sum(dim=0)  # (h,)
        self.sums["mutual_information"][depth] = mutual_information(among).sum(dim=0)
        self.sums["head_similarity"][depth] = head_similarity(among).sum(dim=0)
        self.sums["query_similarity"][depth] = query_similarity(among).mean(dim=1).sum(dim=0)
        self.attention[layer] = among.mean(dim=1)  # (B, N, N), for the comparison of depths

    def record_tokens(self, layer: int, tokens: Tensor) -> None:
        super().record_tokens(layer, tokens)
        self.read_tokens(layer + 1, tokens[:, self.prefix :])

    def read_tokens(self, depth: int, patches: Tensor) -> None:
        """Reduce patch tokens (B, N, D)."""
        self.sums["log_amplitude"][depth] = log_amplitude(patches, self.grid).sum(dim=0)
        self.sums["token_similarity"][depth] = mean_cosine(patches).sum(dim=0)
        if self.spectra:
            values = singular_values(patches[: self.spectra])
            self.sums["token_spectrum"][depth] = log_spectrum(values).sum(dim=0)
            self.sums["token_rank"][depth] = effective_rank(values).sum(dim=0)

    def finish(self) -> None:
        """Reduce what only the whole pass has: the embedding, and the layers beside each other."""
        assert self.embedded is not None
        self.read_tokens(0, self.embedded[:, self.prefix :])
        layers = torch.stack([self.attention[layer] for layer in sorted(self.attention)], dim=1)
        self.sums["depth_similarity"][0] = depth_similarity(layers).sum(dim=0)


@dataclass
class Survey:
    """What was seen of one model: feed it batches with `look`, then ask."""

    model: ViT
    count: int
    """Images that will come at most."""
    seen: int = 0
    grid: tuple[int, int] = (0, 0)
    _spectra: int = 0
    _sums: dict[str, dict[int, Tensor]] = field(default_factory=lambda: defaultdict(dict))

    def __post_init__(self) -> None:
        self._depths, self._representations = Rows(self.count), Rows(self.count)

    def look(self, images: Tensor) -> None:
        """Take in a batch of images (B, C, H, W)."""
        wanted = min(len(images), SPECTRUM_IMAGES - self._spectra)
        trace = _Reading(self.model.config.patch, wanted)
        with torch.inference_mode():
            y = self.model.representation(images, trace=trace)
            trace.finish()
        for name, by_depth in trace.sums.items():
            for depth, value in by_depth.items():
                before = self._sums[name].get(depth)
                self._sums[name][depth] = value.double() if before is None else before + value
        self.grid = trace.grid
        self.seen += len(images)
        self._spectra += wanted
        self._depths.add(trace.depths())
        self._representations.add(y)

    def depths(self) -> Tensor:
        """(n, L + 1, D): of each image the mean of its patch tokens at each depth."""
        return self._depths.all()

    def representations(self) -> Tensor:
        """(n, D): what the classifier reads."""
        return self._representations.all()

    def measures(self) -> Measures:
        """The means over images."""
        steps = len(diagonal(self.grid)) - 1
        spectrum = singular_values(self.representations())
        return Measures(
            attention_distance=_table(self._mean("attention_distance", self.seen)),
            mutual_information=_table(self._mean("mutual_information", self.seen)),
            head_similarity=_values(self._mean("head_similarity", self.seen)),
            query_similarity=_values(self._mean("query_similarity", self.seen)),
            log_amplitude=_table(self._mean("log_amplitude", self.seen)),
            token_similarity=_values(self._mean("token_similarity", self.seen)),
            token_spectrum=_table(self._mean("token_spectrum", self._spectra)),
            token_rank=_values(self._mean("token_rank", self._spectra)),
            depth_similarity=_table(self._mean("depth_similarity", self.seen)[0]),
            frequencies=tuple(round(i / steps, 4) for i in range(steps + 1)),
            image_rank=_values(effective_rank(singular_values(self.depths().transpose(0, 1)))),
            representation_rank=_rounded(effective_rank(spectrum)).item(),
            representation_spectrum=_values(log_spectrum(spectrum)),
        )

    def _mean(self, name: str, count: int) -> Tensor:
        """(depths, ...): the sums of this name over so many images, divided by their number."""
        sums = self._sums[name]
        return torch.stack([sums[depth] / count for depth in sorted(sums)])


def pool_depths(model: ViT, images: Tensor) -> tuple[Tensor, Tensor]:
    """(B, L + 1, D) mean patch tokens at each depth, and the representation (B, D); attention stays fused."""
    trace = _Pooling()
    with torch.inference_mode():
        y = model.representation(images, trace=trace)
    return trace.depths(), y


def _rounded(values: Tensor) -> Tensor:
    """The digits that mean something."""
    return torch.round(values.double(), decimals=5)


def _values(values: Tensor) -> Values:
    return tuple(_rounded(values).tolist())


def _table(values: Tensor) -> Table:
    return tuple(map(_values, values))
