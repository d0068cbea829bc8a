"""A measure of an analysis from outside the package: how long an image's patch tokens are at each depth."""

from vitreous.explain.analysis.depth_measures import DepthMeasure


def token_length(seen):
    """(B,): the mean length of the patch tokens (B, N, D)."""
    return seen.patches.norm(dim=2).mean(dim=1)


MEASURE = DepthMeasure(
    title="length of tokens",
    reading="A few tokens that are much longer than the others are outliers, as registers were invented for.",
    of="tokens",
    compute=token_length,
)
