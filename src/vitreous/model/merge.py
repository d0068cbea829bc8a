"""Token merging (Bolya et al. 2023, "Token Merging: Your ViT but Faster"): patches that look alike become one token.

In some blocks (`ViTConfig.merges`), between equations 2 and 3, the patch tokens are dealt out in turn to two sets.
Every token of the one set finds its most similar in the other, and the most similar pairs become one token each, their
mean. A token that stands for s patches counts s times in attention: log s is added to its logit.

Letters in shapes: B images, T tokens of the whole sequence (prefix, then patches), S tokens that are left of them,
N patch tokens among those, R that this block merges, D width, h heads, d = D/h.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.model.rope import Rotation


class Pairs(NamedTuple):
    """Which of N patch tokens become one. Each number is a token's place among them, from 0."""

    joining: Tensor  # (B, R) odd places, whose tokens end here
    hosts: Tensor  # (B, R) even places, whose tokens take them in; one may take in several
    staying: Tensor  # (B, N//2 - R) the other odd places, in their order


@torch.no_grad()
def match(keys: Tensor, count: int) -> Pairs:
    """The `count` most similar pairs, by the cosine of keys (B, N, d): bipartite soft matching. Of equals, the first.

    Odd places join even ones, not the other way round: with a class token before them, the sets of the paper's code.
    """
    unit = F.normalize(keys, dim=2)
    with _full_precision(keys.device.type):
        similarity = unit[:, 1::2] @ unit[:, ::2].transpose(1, 2)  # (B, odd places, even places)
    best = similarity.amax(dim=2)
    # exporters know no stable sort, and need none: ONNX, for one, puts the first of equals first in any case
    exporting = torch.compiler.is_exporting()
    order = (torch.sort(best, 1, True) if exporting else torch.sort(best, dim=1, descending=True, stable=True)).indices
    hosts = take_rows(similarity, order[:, :count]).argmax(dim=2)
    odd = 2 * order + 1
    return Pairs(odd[:, :count], 2 * hosts, odd[:, count:].sort(dim=1).values)


def _full_precision(device: str) -> AbstractContextManager[object]:
    """Within, autocast is off: what is nearest, and what a mean is, must not depend on the last digits of bfloat16."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


class Merging:
    """What one forward pass has merged so far. It goes along with the tokens from block to block, as a trace does."""

    def __init__(self, prefix: int, counts: Sequence[int], *, tracked: bool, rotation: Rotation | None = None) -> None:
        """prefix: tokens that come first and are never merged. counts: how many tokens each block merges.

        tracked: whether it is to be known which token stands for which patch, so that merging can be undone.
        rotation: of all tokens, with rotary positions. A merged token is where its patches are in the mean.
        """
        self.prefix, self.counts, self.tracked, self.rotation = prefix, counts, tracked, rotation
        self.blocks = 0  # that have merged so far
        self.keys: Tensor | None = None
        """(B, N, d) of the current block, the sum of its heads: only their direction counts."""
        self.sizes: Tensor | None = None
        """(B, S) float: how many tokens of the sequence each stands for; None while nothing is merged."""
        self.merged_ids: Tensor | None = None
        """(B, T) int64: which of the S tokens stands for each of the sequence; None while nothing is merged."""
        self.undone = False  # whether the sequence has all its T tokens again, merged ones repeated

    def watch(self, k: Tensor) -> None:
        """Take note of a block's keys (B, S, h, d), by which its tokens are compared."""
        if self.counts[self.blocks]:
            self.keys = k.detach().sum(dim=2, dtype=torch.float32)[:, self.prefix :]

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """(B, 1, 1, S): what attention adds to the logits of tokens that stand for several; None if none does.

        Tokens that are repeated need none: they are there as often as they count.
        """
        return None if self.sizes is None or self.undone else self.sizes.log()[:, None, None].to(dtype)

    def current_rotation(self) -> Rotation | None:
        """That of the tokens as they are now, repeated where they are."""
        rotation = self.rotation
        if rotation is None or not self.undone or self.merged_ids is None:
            return rotation
        return Rotation.of(self._repeated(rotation.angles), rotation.interleaved)

    def merge(self, z: Tensor) -> Tensor:
        """The tokens (B, S, D) between equations 2 and 3 with the block's count of them merged: (B, S - R, D)."""
        count, keys = self.counts[self.blocks], self.keys
        self.blocks, self.keys = self.blocks + 1, None
        if not count or keys is None:
            return z
        if not self.undone:
            return self._merge(z, match(keys, count))
        keys = self._joined(torch.cat([keys.new_zeros(len(keys), self.prefix, keys.shape[2]), keys], dim=1))
        return self._repeated(self._merge(self._joined(z), match(keys[:, self.prefix :], count)))

    def undo(self, z: Tensor) -> Tensor:
        """All tokens again, (B, T, D): each that was merged is given what its merged token has. So it stays."""
        undone, self.undone = self.undone, True
        return z if undone else self._repeated(z)

    def groups(self) -> Tensor | None:
        """(B, T - prefix) int64: for each patch token the first of those that it is one with; None if none is."""
        if self.merged_ids is None:
            return None
        patches = self.merged_ids[:, self.prefix :]
        return (patches[:, :, None] == patches[:, None]).int().argmax(dim=2)

    def _merge(self, z: Tensor, pairs: Pairs) -> Tensor:
        """(B, S, D) to (B, S - R, D): prefix, the odd places that stay, then the even ones, some of them means."""
        (images, tokens, _), device, count = z.shape, z.device, pairs.joining.shape[1]
        prefix, even = torch.arange(self.prefix, device=device), torch.arange(self.prefix, tokens, 2, device=device)
        staying, joining, hosts = (self.prefix + part for part in (pairs.staying, pairs.joining, pairs.hosts))
        order = torch.cat([prefix.expand(images, -1), staying, even.expand(images, -1)], dim=1)
        lengths = [order.shape[1] - len(even), len(even), count]

        sizes = z.new_ones(images, tokens, dtype=torch.float32) if self.sizes is None else self.sizes
        all_ids = torch.cat([order, joining], dim=1)
        stay_size, host_size, join_size = torch.split(sizes.gather(1, all_ids), lengths, dim=1)
        taken = (even[:, None] == hosts[:, None]) * join_size[:, None]  # (B, even places, R): what each host takes in
        size = host_size + taken.sum(dim=2)
        self.sizes = torch.cat([stay_size, size], dim=1)
        if self.tracked:
            self.merged_ids = self._follow(order, joining, pairs.hosts // 2 + lengths[0])

        own, weight = (host_size / size)[:, :, None], taken / size[:, :, None]

        def joined(values: Tensor) -> Tensor:
            """(B, S, X) to (B, S - R, X)."""
            stays, hosts, joins = torch.split(take_rows(values, all_ids), lengths, dim=1)
            with _full_precision(device.type):
                mean = own.to(values.dtype) * hosts + weight.to(values.dtype) @ joins
            return torch.cat([stays, mean], dim=1)

        if self.rotation is not None:
            angles = joined(self.rotation.angles.expand(images, -1, -1))
            self.rotation = Rotation.of(angles, self.rotation.interleaved)
        return joined(z)

    def _follow(self, order: Tensor, joining: Tensor, hosts: Tensor) -> Tensor:
        """(B, T): `merged_ids`, after the tokens `order` became the first, second, ..., and `joining` their hosts."""
        images, left = order.shape
        new = torch.cat([torch.arange(left, device=order.device).expand(images, -1), hosts], dim=1)
        new = new.gather(1, torch.cat([order, joining], dim=1).argsort(dim=1))  # (B, S) by the places before
        return new if self.merged_ids is None else new.gather(1, self.merged_ids)

    def _repeated(self, z: Tensor) -> Tensor:
        return z if self.merged_ids is None else take_rows(z, self.merged_ids)

    def _joined(self, z: Tensor) -> Tensor:
        """(B, T, D) to (B, S, D): the mean of those that one token stands for."""
        if self.merged_ids is None or self.sizes is None:
            return z
        total = z.new_zeros(*self.sizes.shape, z.shape[2])
        total = total.scatter_add(1, self.merged_ids[:, :, None].expand_as(z), z)
        return total / self.sizes[:, :, None].to(z.dtype)


def take_rows(values: Tensor, rows: Tensor) -> Tensor:
    """(B, N, X) at rows (B, M): (B, M, X). Whole rows are copied, which is several times as fast as `gather`."""
    images, count, width = values.shape
    start = count * torch.arange(images, device=rows.device)[:, None]
    return values.reshape(-1, width).index_select(0, (rows + start).flatten()).view(images, rows.shape[1], width)
