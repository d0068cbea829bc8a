"""Token labelling (LV-ViT, Jiang et al. 2021): every patch token learns what a teacher predicts for it.

Letters: B images, N patches, M of them looked at, D width, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from vitreous.config import objective as config
from vitreous.data.batch import Batch
from vitreous.model.initialise import Linear
from vitreous.model.network import Network, require
from vitreous.model.position import take_cells
from vitreous.model.predictions import is_right, predicted_class
from vitreous.model.trace import Trace
from vitreous.model.vit import ViT
from vitreous.objectives.objective import Metrics, Setting
from vitreous.objectives.supervised import Classification, accuracy


class TokenLabelling(Classification):
    """Cross-entropy with the label, and beta times that of each patch token with what the teacher says of its place.

    Patch tokens have a classifier of their own, which is saved beside the network and not needed to use it.
    """

    model: ViT
    settings: config.TokenLabel

    def __init__(self, model: Network, settings: config.TokenLabel, setting: Setting | None = None) -> None:
        super().__init__(require(model, ViT, "token labels"), settings, setting)
        self.patch_classifier = Linear(self.model.config.width, self.model.config.classes)
        nn.init.zeros_(self.patch_classifier.weight)  # as every classifier starts
        nn.init.zeros_(self.patch_classifier.bias)

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        assert batch.token_targets is not None
        trace = Trace(layers=[-1], attention=False)
        logits = self._logits(batch, progress, trace=trace)
        patch_logits = self.patch_logits(trace)
        targets = batch.token_targets if trace.keep_ids is None else take_cells(batch.token_targets, trace.keep_ids)
        token_loss = self._mean(token_cross_entropy(patch_logits, targets), batch)
        loss = self._label_loss(logits, batch) + self.settings.token_weight * token_loss
        agreement = is_right(patch_logits.detach(), predicted_class(targets)).float().mean()
        return loss, {
            "accuracy": accuracy(logits, batch),
            "token_loss": token_loss.detach(),
            "token_agreement": agreement,
        }

    def patch_logits(self, trace: Trace) -> Tensor:
        """(B, M, K): the patches' classifier on the last tokens, normed as the network's own classifier has them."""
        (tokens,) = trace.tokens.values()
        return self.patch_classifier(self.model.fc_norm(self.model.norm(tokens[:, trace.prefix :])))

    def extras(self) -> Mapping[str, nn.Module]:
        return {"patch_classifier": self.patch_classifier}


def token_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """(B,): the mean over patches of H(softmax(logits), targets), both (B, M, K).

    In the targets' precision: the processor's autocast would leave logarithms of bfloat16 as they are.
    """
    return -(targets * logits.to(targets.dtype).log_softmax(dim=2)).sum(dim=2).mean(dim=1)
