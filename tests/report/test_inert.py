"""Every page with names that try to break it: what they hold is shown, and makes no element, address or attribute."""

from dataclasses import replace

import pytest
from PIL import Image
from test_page import Reader

from support import contents, transfers
from support.greys import draw_images
from vitreous import ViT, analyze, write_walkthrough
from vitreous.config.data import Preprocess
from vitreous.report.page import TokenLabelImage, page
from vitreous.report.pretraining import pretraining_page
from vitreous.studies.transfer.page import transfer_page
from vitreous.weights.bundle import Bundle

NAMES = {
    "script": "<script>alert(1)</script>",
    "attribute": '" onmouseover="alert(1)" x="',
    "single quote": "' onmouseover='alert(1)",
    "end of the title": "</title></style><img src=x onerror=alert(1)>",
    "end of a plot": "</text></svg><iframe src=//example.com>",
    "comment": "<!--",
    "entity": "&lt;b&gt;",
    "control": "a\x00\x08\x1b[31mb",
    "lines": "a\nb\r\u2028c",
    "turned around": "\u202egnp.tac\u2066",
    "stray byte": "caf\udce9",
    "style": "font-family: x; url(//example.com)",
}


class Attributes(Reader):
    """The same, with the names of all attributes."""

    def handle_starttag(self, tag, attrs):
        self.attributes = getattr(self, "attributes", set()) | {name for name, _ in attrs}
        super().handle_starttag(tag, attrs)


def check(text):
    text.encode("utf-8")
    found = Attributes(text)
    assert not {"script", "iframe", "object", "form", "b>"} & set(found.tags)
    assert all(address.startswith(("#", "data:")) for address in found.addresses)
    assert not [name for name in found.attributes if name.startswith("on")]
    assert not set(text) & set("\x00\x08\x1b\u202e\u2066\u2028")
    assert text[:200].count('<meta name="generator" content="vitreous ') == 1


@pytest.mark.slow
def test_the_pages_of_a_run(monkeypatch, subtests):
    plain = replace(contents.content(2), weight_figures={})
    for kind, name in NAMES.items():
        with subtests.test(kind):
            monkeypatch.setattr(contents, "NASTY", (name, "b"))
            told = replace(plain.run, **dict.fromkeys(("place", "data", "start", "method", "teacher"), name))
            told = replace(told, alarms=(name,), remarks=(name,), records=[])  # curves show no names
            examples = (TokenLabelImage(name, name, Image.new("RGB", (20, 30)), [[name, "b"]], [[0.9, 0.2]]),)
            splits = contents.scored(classes=2), contents.scored("validation", 2, n=50)
            words = {
                **dict.fromkeys(("name", "place", "data", "card"), name),
                "left_out": (name,),
                "token_labels": examples,
            }
            check(page(replace(plain, bundle=contents.bundle(2), run=told, splits=splits, **words)))
            check(pretraining_page(name, told))


def test_the_page_of_a_self_training(subtests):
    for kind, name in NAMES.items():
        with subtests.test(kind):
            check(contents.self_training(name))


def test_the_page_of_a_transfer(subtests):
    for kind, name in NAMES.items():
        with subtests.test(kind):
            check(transfer_page(transfers.hostile(name)))


def bundle_of(folder, word):
    """A model whose classes and whose folder are called so; a name in a path has no slash."""
    return Bundle(ViT("P/4@16", classes=2).eval(), Preprocess(size=(16, 16)), (word, word), path=folder / word)


def test_the_page_of_a_image(tmp_path, subtests):
    for kind in list(NAMES)[:7]:
        with subtests.test(kind):
            word = NAMES[kind].replace("/", "")
            Image.new("RGB", (20, 20)).save(tmp_path / f"{word}.png")
            (made,) = write_walkthrough(bundle_of(tmp_path, word), tmp_path / f"{word}.png", out=tmp_path / "out")
            check(made.page.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_page_of_many_models(tmp_path):
    models = [bundle_of(tmp_path, NAMES[name].replace("/", "")) for name in list(NAMES)[:4]]
    data = draw_images(tmp_path / "<script>", count=16)
    for what in ("depths", "bias"):
        check(
            analyze(models, data=data, out=tmp_path / "out", what=what, count=8, workers=0).page.read_text(
                encoding="utf-8"
            )
        )
