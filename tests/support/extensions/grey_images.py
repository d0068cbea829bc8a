"""A perturbation of `analyze --what bias` from outside the package: colours fade to grey."""

from vitreous.explain.analysis.perturbations import Perturbation


def fade(images, index, strength, seed):
    """(B, C, H, W): each pixel moves by this fraction of the way to the mean of its channels."""
    return images + strength * (images.mean(dim=1, keepdim=True) - images)


GREY = Perturbation(
    title="faded to grey",
    along="fraction of the colour taken away",
    reading="A steep fall: the model relies on colours.",
    strengths=lambda size, patch: [0.5, 1.0],
    change=fade,
)
