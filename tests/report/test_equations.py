"""The equations on a page are those that the model computes."""

import re

from support.variants import TINY
from vitreous import ViTConfig
from vitreous.report.html import macros

equations = macros("equations.html")


def plain(html):
    """Its text, with what stands below after _ and what stands above after ^."""
    return re.sub(r"<[^>]+>", "", re.sub(r"<su([bp])>", lambda found: "_" if found[1] == "b" else "^", html))


def test_equation_four_has_the_norm_where_the_model_has_it(subtests):
    for changes, y in [
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
    ]:
        with subtests.test(changes=changes, y=y):
            assert plain(equations.representation(ViTConfig(**TINY, **changes))) == f"y = {y}(4)"


def test_equation_one_lists_every_token_and_the_positions_there_are(subtests):
    for changes, tokens, positions in [
        ({}, "x_class; ", "(N+1)×D"),
        ({"distilled": True}, "x_class; x_dist; ", "(N+2)×D"),
        ({"registers": 3}, "x_class; r_1…3; ", "(N+4)×D"),
        ({"registers": 1, "position_scope": "class"}, "x_class; r; ", "(N+1)×D"),
        ({"position_scope": "patches"}, "x_class; ", "N×D"),
        ({"position": "sincos-2d"}, "x_class; ", "N×D"),
        ({"class_token": False, "pool": "mean"}, "", "N×D"),
    ]:
        with subtests.test(changes=changes, tokens=tokens, positions=positions):
            listed = f"[{tokens}x_p^1E; x_p^2E; ⋯; x_p^NE]"
            expected = f"z_0 = {listed} + E_posE_pos ∈ ℝ^{positions}(1)"
            assert plain(equations.tokens(ViTConfig(**TINY, **changes))) == expected


def test_attention_has_the_bias_that_its_scores_have():
    relative = ViTConfig(**TINY, position="relative")
    assert plain(equations.attention(relative)).startswith("A = softmax(qk^⊤ / √d + b)")
    assert plain(equations.attention(ViTConfig(**TINY))).startswith("A = softmax(qk^⊤ / √d)A ∈")


def test_the_classifier(subtests):
    for changes, expected in [
        ({}, "softmax(yW + b)W ∈ ℝ^D×K"),
        ({"pool": "class+mean"}, "softmax(yW + b)W ∈ ℝ^2D×K"),
        ({"classifier": "mlp"}, "softmax(tanh(yV + a)W + b)W ∈ ℝ^D×K"),
        ({"distilled": True}, "softmax((LN(z_L^0)W + b + LN(z_L^dist)W′ + b′) / 2)W ∈ ℝ^D×K"),
    ]:
        with subtests.test(changes=changes):
            assert plain(equations.classes(ViTConfig(**TINY, **changes))) == expected
