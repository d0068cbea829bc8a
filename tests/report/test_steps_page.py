"""The page of steps: every number on it against the paper's equations in NumPy."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from support.numpy_steps import expected_steps
from support.variants import VARIANTS, random_model
from vitreous import write_walkthrough
from vitreous.config.data import Preprocess
from vitreous.data.augment import eval_view, normalise
from vitreous.weights.bundle import Bundle

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


class Shown(HTMLParser):
    """{name of a vector: (its written numbers, its length)}, and the text of the page."""

    def __init__(self, text):
        super().__init__()
        self.html = text.replace("−", "-")
        self.name, self.kind, self.vectors, self.words, self.cells = None, None, {}, [], [[]]
        self.feed(text)
        self.text = re.sub(r"\s+", " ", "".join(self.words)).replace("−", "-")

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.name = attrs.get("data-name", self.name)
        self.kind = "cell" if tag == "td" else attrs.get("class")
        if tag == "tr":
            self.cells.append([])

    def handle_endtag(self, tag):
        self.kind = None

    def handle_data(self, data):
        self.words.append(data)
        if self.kind == "written":
            self.vectors[self.name] = [[float(n) for n in re.findall(r"-?\d+\.\d+", data.replace("−", "-"))]]
        elif self.kind == "length":
            self.vectors[self.name] += re.search(r"(\d+) numbers, length (.+)", data).groups()
        elif self.kind == "cell":
            self.cells[-1].append(data.replace("−", "-").replace("\u00a0", " "))


def write_page(bundle, image, out, **options):
    (made,) = write_walkthrough(bundle, image, out=out, **options)
    return made.page


def make_image(size=(40, 30)):
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    return Image.fromarray(noise)


def bundle_of(**changes):
    model = random_model(**changes)
    c = model.config
    preprocess = Preprocess(size=c.image_size, mean=MEAN[: c.channels], std=STD[: c.channels], crop=0.9)
    return Bundle(model, preprocess, tuple(f"<class {k}>" for k in range(c.classes)))


SHOWABLE = {
    name: changes
    for name, changes in VARIANTS.items()
    if changes.get("channels", 3) in (1, 3) and changes.get("patch", 4) == 4
}


def test_every_number_on_the_page_is_the_paper_s(tmp_path, subtests):
    for name in SHOWABLE:
        with subtests.test(name=name):
            bundle = bundle_of(**SHOWABLE[name])
            c, p = bundle.model.config, bundle.preprocess
            make_image().save(tmp_path / "a.png")
            mode = "RGB" if c.channels == 3 else "L"
            image = normalise(eval_view(make_image().convert(mode), p)[None], p)[0].double().numpy()
            for query, layer, head in ((None, -1, 0), ((9.0, 12.0), 0, 2)):
                path = write_page(bundle, tmp_path / "a.png", out=tmp_path / "out", layer=layer, head=head, query=query)
                shown = Shown(path.read_text(encoding="utf-8"))
                rows, columns = -(-c.image_size[0] // 4), -(-c.image_size[1] // 4)
                cell = int(re.search(r"<b>k</b><sub>(\d+)</sub>", shown.html)[1]) - 1
                if query is None:
                    assert cell == rows // 2 * columns + columns // 2
                query_token = 0 if query is None and c.pool.startswith("class") else c.prefix + cell
                truth = expected_steps(bundle.model, image, cell, query_token, layer % c.depth, head)
                check_vectors(shown, truth, c, cell)
                check_scores(shown, truth, c, cell)
                check_classes(shown, truth)


def check_vectors(shown, truth, c, cell):
    best = int(truth["weights"].argmax())
    expected = {
        **truth,
        "patch": truth["patch"].reshape(-1),
        "key": truth["keys"][c.prefix + cell],
        "value": truth["values"][c.prefix + cell],
        "best_value": truth["values"][best],
    }
    always = {"patch", "projected", "token", "before", "query", "key", "value", "best_value", "summed", "attended"}
    assert always | {"middle", "mlp", "after", "representation"} <= set(shown.vectors)
    for name, (numbers, count, length) in shown.vectors.items():
        if name == "representation":  # held in tests/explain
            continue
        assert int(count) == len(expected[name])
        np.testing.assert_allclose(numbers, expected[name][:8], atol=1.2e-3, err_msg=name)
        assert float(length) == pytest.approx(np.linalg.norm(expected[name]), abs=3e-3), name
    for name in ("class_token", "class_position", "position"):
        assert (name in shown.vectors) == (truth[name] is not None)


def check_scores(shown, truth, c, cell):
    token, d = c.prefix + cell, c.width // c.heads
    told = re.search(r"q · k = (.*?)√d = √\d+ = [\d.]+ (.*?)</p>", shown.html, re.DOTALL)
    product, scaled, *biased = re.findall(r"-?\d+\.\d+", told[1] + told[2])
    assert float(product) == pytest.approx(truth["products"][token], abs=1e-3)
    assert float(scaled) == pytest.approx(truth["products"][token] / d**0.5, abs=1e-3)
    if truth["bias"] is not None:
        bias, total = biased
        assert float(bias) == pytest.approx(truth["bias"][token], abs=1e-3)
        assert float(total) == pytest.approx(truth["attention_logits"][token], abs=1e-3)
    low, high = re.search(r"(-?\d+\.\d{3}) to (-?\d+\.\d{3})", shown.text).groups()
    patches = truth["attention_logits"][c.prefix :]
    assert (float(low), float(high)) == pytest.approx((patches.min(), patches.max()), abs=1e-3)
    listed = [row for row in shown.cells if len(row) == 3 and not row[0].startswith("<class")]
    weights = sorted(truth["weights"], reverse=True)
    found = [float(row[2].split()[0]) for row in listed]
    assert found == pytest.approx([100 * weight for weight in weights[:5]], abs=0.06)
    share = float(re.search(r"([\d.]+) % to ", shown.text)[1])
    assert share == pytest.approx(100 * truth["weights"][c.prefix :].sum(), abs=0.06)
    for number, weights in enumerate(truth["heads"], 1):
        most = float(re.search(rf"Head {number}\D+([\d.]+)", shown.text)[1])
        assert most == pytest.approx(100 * weights[c.prefix :].max(), abs=0.06)


def check_classes(shown, truth):
    found = [row for row in shown.cells if row and row[0].startswith("<class")]
    if truth["probabilities"] is None:
        assert not found
        return
    order = np.argsort(-truth["probabilities"])[:5]
    assert [row[0] for row in found] == [f"<class {k}>" for k in order]
    assert [float(row[1]) for row in found] == pytest.approx(truth["logits"][order].tolist(), abs=1e-3)
    shares = [float(row[2].split()[0]) for row in found]
    assert shares == pytest.approx((100 * truth["probabilities"][order]).tolist(), abs=0.06)


def test_maps_are_in_colour_on_a_black_image_too(tmp_path):
    """Darkness alone would show nothing on it."""
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    text = write_page(bundle_of(), tmp_path / "a.png", out=tmp_path / "out").read_text()
    veils = re.findall(r'<image href="data:image/png;base64,([^"]+)"[^>]*class="cells"', text)
    assert veils
    for veil in veils:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(veil))).convert("RGBA")).reshape(-1, 4).astype(int)
        brightness = pixels[:, :3].sum(axis=1)
        assert brightness.max() > brightness.min() + 200
        assert pixels[:, 3].min() > 100  # its colour covers the image also where the value is low


def test_names_cannot_break_it_and_it_needs_nothing_else(tmp_path):
    name = "<img src=x onerror=alert(1)>.png"
    make_image().save(tmp_path / name)
    text = write_page(bundle_of(), tmp_path / name, out=tmp_path / "out").read_text()
    assert "<img src=x" not in text
    assert "&lt;class 0&gt;" in text
    addresses = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert addresses
    assert all(address.startswith(("#view", "data:")) for address in addresses)
    assert "<script" not in text


def test_equations_are_those_of_the_model(tmp_path):
    def formulas(**changes):
        make_image().save(tmp_path / "a.png")
        text = write_page(bundle_of(**changes), tmp_path / "a.png", out=tmp_path / "out").read_text()
        found = re.findall(r'<p class="equation">(.*?)</p>', text)
        return [re.sub(r"<[^>]+>", "", formula) for formula in found]

    paper = formulas()
    assert "z0 = [xclass; xp1E; xp2E; ⋯; xpNE] + EposEpos ∈ ℝ(N+1)×D(1)" in paper
    assert "z′ℓ = MSA(LN(zℓ−1)) + zℓ−1ℓ = 1…L(2)" in paper
    assert "zℓ = MLP(LN(z′ℓ)) + z′ℓℓ = 1…L(3)" in paper
    assert "y = LN(zL0)(4)" in paper
    other = formulas(norm="after", pool="mean", class_token=False, position="relative")
    assert "z0 = [xp1E; xp2E; ⋯; xpNE](1)" in other
    assert "z′ℓ = LN(MSA(zℓ−1) + zℓ−1)ℓ = 1…L(2)" in other
    assert "qk⊤ / √d + b" in other
    assert "y = mean(zL1…N)(4)" in other


def test_a_browser_shows_it_on_a_phone(tmp_path):
    from test_browser import CHROMIUM, look

    if CHROMIUM is None:
        pytest.skip("needs chromium: apt-get install chromium")
    make_image().save(tmp_path / "a.png")
    made = write_page(bundle_of(registers=2), tmp_path / "a.png", out=tmp_path / "out")
    found, asked = look(made.read_text(encoding="utf-8"), tmp_path)
    assert found["scroll"] <= found["client"], found["past"]
    assert not found["broken"]
    assert asked == []
