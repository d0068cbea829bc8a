"""A new explanation method: the gradient of the class's logit times the pixels, as blurred as a 7 x 7 grid."""

import torch
import torch.nn.functional as F

from vitreous.explain.request import ExplanationMethod


def gradient_maps(model, images, targets):
    """((B, 7, 7), logits (B, K)): |gradient x input| of the target's logit, summed over channels and squares."""
    with torch.inference_mode(False), torch.enable_grad():
        images = images.clone().requires_grad_()
        logits = model(images)
        targets = logits.argmax(dim=1) if targets is None else targets
        (gradient,) = torch.autograd.grad(logits.gather(1, targets.clone()[:, None]).sum(), images)
    return F.adaptive_avg_pool2d((gradient * images).abs().sum(dim=1), 7).detach(), logits.detach()


METHOD = ExplanationMethod(
    title="Gradient × input",
    hint="Which pixels the class would notice first.",
    maps=gradient_maps,
    gradients=True,
)
