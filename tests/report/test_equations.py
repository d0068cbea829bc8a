"""The equations on a page are those that the model computes."""

import re

import pytest

from support.variants import TINY
from vitreous import ViTConfig
from vitreous.report import equations


def plain(html):
    """Its text, with what stands below after _ and what stands above after ^."""
    return re.sub(r"<[^>]+>", "", re.sub(r"<su([bp])>", lambda found: "_" if found[1] == "b" else "^", html))


@pytest.mark.parametrize(
    ("changes", "y"),
    [
        ({}, "LN(z_L^0)"),
        ({"norm": "after"}, "z_L^0"),
        ({"norm_after_pool": True}, "LN(z_L^0)"),
        ({"distilled": True}, "mean(LN(z_L^0), LN(z_L^dist))"),
        ({"pool": "mean"}, "mean(LN(z_L^1…N))"),
        ({"pool": "mean", "norm_after_pool": True}, "LN(mean(z_L^1…N))"),
        ({"pool": "mean", "norm": "after"}, "mean(z_L^1…N)"),
        ({"pool": "class+mean"}, "[LN(z_L^0); mean(LN(z_L^1…N))]"),
        ({"pool": "attention"}, "MAP(LN(z_L^1…N))"),
        ({"pool": "attention", "norm_after_pool": True}, "LN(MAP(z_L^1…N))"),
    ],
    ids=str,
)
def test_equation_four_has_the_norm_where_the_model_has_it(changes, y):
    assert plain(equations.representation(ViTConfig(**TINY, **changes))) == f"y = {y}(4)"


@pytest.mark.parametrize(
    ("changes", "tokens", "positions"),
    [
        ({}, "x_class; ", "(N+1)×D"),
        ({"distilled": True}, "x_class; x_dist; ", "(N+2)×D"),
        ({"registers": 3}, "x_class; r_1…3; ", "(N+4)×D"),
        ({"registers": 1, "position_scope": "class"}, "x_class; r; ", "(N+1)×D"),
        ({"position_scope": "patches"}, "x_class; ", "N×D"),
        ({"position": "sincos-2d"}, "x_class; ", "N×D"),
        ({"class_token": False, "pool": "mean"}, "", "N×D"),
    ],
    ids=str,
)
def test_equation_one_lists_every_token_and_the_positions_there_are(changes, tokens, positions):
    listed = f"[{tokens}x_p^1E; x_p^2E; ⋯; x_p^NE]"
    expected = f"z_0 = {listed} + E_posE_pos ∈ ℝ^{positions}(1)"
    assert plain(equations.tokens(ViTConfig(**TINY, **changes))) == expected


def test_attention_has_the_bias_that_its_scores_have():
    relative = ViTConfig(**TINY, position="relative")
    assert plain(equations.attention(relative)).startswith("A = softmax(qk^⊤ / √d + b)")
    assert plain(equations.attention(ViTConfig(**TINY))).startswith("A = softmax(qk^⊤ / √d)A ∈")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "softmax(yW + b)W ∈ ℝ^D×K"),
        ({"pool": "class+mean"}, "softmax(yW + b)W ∈ ℝ^2D×K"),
        ({"classifier": "mlp"}, "softmax(tanh(yV + a)W + b)W ∈ ℝ^D×K"),
        ({"distilled": True}, "softmax((LN(z_L^0)W + b + LN(z_L^dist)W′ + b′) / 2)W ∈ ℝ^D×K"),
    ],
    ids=str,
)
def test_the_classifier(changes, expected):
    assert plain(equations.classes(ViTConfig(**TINY, **changes))) == expected
