"""The paper's equations in HTML, as they hold for a given model, readable without a script."""

from __future__ import annotations

from vitreous.config.model import ViTConfig
from vitreous.report.html import Html, tag

X_DIST, OWN, DIST = "<b>x</b><sub>dist</sub>", "<b>z</b><sub>L</sub><sup>0</sup>", "<b>z</b><sub>L</sub><sup>dist</sup>"
Z, X_CLASS, E, E_POS = "<b>z</b>", "<b>x</b><sub>class</sub>", "<b>E</b>", "<b>E</b><sub>pos</sub>"
MIDDLE, BEFORE = "<b>z</b>′<sub>ℓ</sub>", "<b>z</b><sub>ℓ−1</sub>"
LAYERS = "ℓ = 1…<var>L</var>"


def equation(formula: str, *, where: str = "", number: str = "") -> Html:
    """One line, with what its letters are and its number in the paper."""
    parts = [tag("span", Html(formula), class_="formula")]
    if where:
        parts.append(tag("span", Html(where), class_="where"))
    if number:
        parts.append(tag("span", f"({number})", class_="number"))
    return tag("p", *parts, class_="equation")


FLATTENED = equation(
    "<b>x</b> ∈ ℝ<sup>H×W×C</sup> → <b>x</b><sub>p</sub> ∈ ℝ<sup>N×(P²·C)</sup>",
    where="<var>N</var> = <var>HW</var> / <var>P</var>²",
)
PROJECTED = equation("<b>x</b><sub>p</sub><b>E</b>", where="<b>E</b> ∈ ℝ<sup>(P²·C)×D</sup>")
SUMMED = equation("SA(<b>z</b>) = <var>A</var><b>v</b>")


def tokens(c: ViTConfig) -> Html:
    """Equation 1."""
    patches = "; ".join(f"<b>x</b><sub>p</sub><sup>{i}</sup>{E}" for i in (1, 2))
    registers = f"<b>r</b><sub>1…{c.registers}</sub>" if c.registers > 1 else "<b>r</b>"
    before = [X_CLASS] * c.class_token + [X_DIST] * c.distilled + [registers] * bool(c.registers)
    listed = f"{''.join(f'{token}; ' for token in before)}{patches}; ⋯; <b>x</b><sub>p</sub><sup>N</sup>{E}"
    placed = c.position in ("learned-1d", "learned-2d", "sincos-2d")
    count = f"(N+{c.prefix_positions})×D" if c.prefix_positions else "N×D"
    where = f"{E_POS} ∈ ℝ<sup>{count}</sup>" if placed else ""
    return equation(f"{Z}<sub>0</sub> = [{listed}]{f' + {E_POS}' if placed else ''}", where=where, number="1")


def queries(c: ViTConfig) -> Html:
    """Queries, keys and values."""
    entering = f"LN({Z})" if c.norm == "before" else Z
    return equation(
        f"[<b>q</b>, <b>k</b>, <b>v</b>] = {entering} <b>U</b><sub>qkv</sub>",
        where="<b>U</b><sub>qkv</sub> ∈ ℝ<sup>D×3d</sup>",
    )


def scores(c: ViTConfig) -> Html:
    """How well a key fits a query."""
    return equation(_fit(c))


def attention(c: ViTConfig) -> Html:
    """The weights that the scores become."""
    return equation(f"<var>A</var> = softmax({_fit(c)})", where="<var>A</var> ∈ ℝ<sup>T×T</sup>, one row of it here")


def _fit(c: ViTConfig) -> str:
    bias = " + <var>b</var>" if c.position == "relative" else ""
    return f"<b>q</b><b>k</b><sup>⊤</sup> / √<var>d</var>{bias}"


def block(c: ViTConfig) -> Html:
    """Equations 2 and 3, or where the norm comes after the sum, those of the first Transformer."""
    if c.norm == "before":
        one, two = f"MSA(LN({BEFORE})) + {BEFORE}", f"MLP(LN({MIDDLE})) + {MIDDLE}"
    else:
        one, two = f"LN(MSA({BEFORE}) + {BEFORE})", f"LN(MLP({MIDDLE}) + {MIDDLE})"
    first = equation(f"{MIDDLE} = {one}", where=LAYERS, number="2")
    return Html(first + equation(f"{Z}<sub>ℓ</sub> = {two}", where=LAYERS, number="3"))


def representation(c: ViTConfig) -> Html:
    """Equation 4: y, as the paper has it or as this model makes it."""
    patches = _read(c, f"{Z}<sub>L</sub><sup>1…N</sup>")
    own = _read(c, OWN)
    made = {
        "class": f"mean({own}, {_read(c, DIST)})" if c.distilled else own,
        "mean": f"mean({patches})",
        "class+mean": f"[{own}; mean({patches})]",
        "attention": f"MAP({patches})",
    }[c.pool]
    return equation(f"<b>y</b> = LN({made})" if c.norm_after_pool else f"<b>y</b> = {made}", number="4")


def _read(c: ViTConfig, token: str) -> str:
    """A token of the last block as the answer reads it: through the last norm, unless that comes elsewhere."""
    return f"LN({token})" if c.norm == "before" and not c.norm_after_pool else token


def classes(c: ViTConfig) -> Html:
    """From the representation to the classes."""
    where = f"<b>W</b> ∈ ℝ<sup>{'2' if c.pool == 'class+mean' else ''}D×K</sup>"
    if c.distilled:
        both = f"{_read(c, OWN)}<b>W</b> + <b>b</b> + {_read(c, DIST)}<b>W</b>′ + <b>b</b>′"
        return equation(f"softmax(({both}) / 2)", where=where)
    y = "tanh(<b>y</b><b>V</b> + <b>a</b>)" if c.classifier == "mlp" else "<b>y</b>"
    return equation(f"softmax({y}<b>W</b> + <b>b</b>)", where=where)
