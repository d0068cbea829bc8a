"""Token labelling (LV-ViT, Jiang et al. 2021): every patch token learns what a teacher says of its place.

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
from vitreous.objectives.objective import Metrics
from vitreous.objectives.setting import Setting
from vitreous.objectives.supervised import Classification, accuracy, class_weights


class TokenLabelling(Classification):
    """Cross-entropy with the label, and beta times that of each patch token with what the teacher says of its place.

    Patch tokens have a classifier of their own, which is saved beside the network and not needed to use it.
    """

    model: ViT
    settings: config.TokenLabel

    def __init__(self, model: ViT, settings: config.TokenLabel, class_weight: Tensor | None = None) -> None:
        super().__init__(model, settings, class_weight)
        self.patch_classifier = Linear(model.config.width, model.config.classes)
        nn.init.zeros_(self.patch_classifier.weight)  # as every classifier starts
        nn.init.zeros_(self.patch_classifier.bias)

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """The loss of a batch; of both its terms, the accuracy and the patch tokens' loss."""
        assert batch.token_targets is not None
        trace = Trace(layers=[-1], attention=False)
        scores = self._scores(batch, progress, trace=trace)
        tokens = self.patch_scores(trace)
        targets = batch.token_targets if trace.keep_ids is None else take_cells(batch.token_targets, trace.keep_ids)
        token_loss = self._mean(token_cross_entropy(tokens, targets), batch)
        loss = self._label_loss(scores, batch) + self.settings.token_weight * token_loss
        agreement = is_right(tokens.detach(), predicted_class(targets)).float().mean()
        return loss, {
            "accuracy": accuracy(scores, batch),
            "token_loss": token_loss.detach(),
            "token_agreement": agreement,
        }

    def patch_scores(self, trace: Trace) -> Tensor:
        """(B, M, K): the patches' classifier on the last tokens, normed as the network's own classifier has them."""
        (tokens,) = trace.tokens.values()
        scores: Tensor = self.patch_classifier(self.model.fc_norm(self.model.norm(tokens[:, trace.prefix :])))
        return scores

    def extras(self) -> Mapping[str, nn.Module]:
        """The classifier of patch tokens."""
        return {"patch_classifier": self.patch_classifier}


def token_cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """(B,): the mean over patches of H(softmax(scores), targets), both (B, M, K).

    In the targets' precision: the processor's autocast would leave logarithms of bfloat16 as they are.
    """
    return -(targets * scores.to(targets.dtype).log_softmax(dim=2)).sum(dim=2).mean(dim=1)


def build_token_label(network: Network, settings: config.TokenLabel, setting: Setting) -> TokenLabelling:
    """Only a network of patches can learn a label for each."""
    model = require(network, ViT, "token labels")
    return TokenLabelling(model, settings, class_weights(network, settings, setting))
