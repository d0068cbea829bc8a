"""Whatever classes, files and folders are called, a model card shows their names, and nothing in them does anything."""

import re
from html.parser import HTMLParser

from markdown_it import MarkdownIt

from vitreous import preset
from vitreous.config.data import Preprocess
from vitreous.config.train import Training
from vitreous.distributed.meter import Cost
from vitreous.training.request import FitRequest, PretrainRequest
from vitreous.training.result import FitResult, PretrainResult, model_card, pretrain_card
from vitreous.verbs.weights import import_card
from vitreous.weights.bundle import _plain_card
from vitreous.weights.markdown import code, visible

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "image of html": "<img src=x onerror=alert(1)>",
    "end of a code element": "</code></p><iframe src=javascript:alert(1)>",
    "link": "[click](javascript:alert(1))",
    "image": "![x](https://example.com/x.png)",
    "reference": "[a][b]\n\n[b]: https://example.com",
    "address": "https://example.com/cats",
    "address without scheme": "www.example.com",
    "address in brackets": "<https://example.com>",
    "mail": "someone@example.com",
    "backtick": "a`b",
    "backticks": "``` ` `` ```",
    "code that ends": "` <b>bold</b> `",
    "only backticks": "``",
    "fence": "```\n<b>bold</b>\n```",
    "heading": "\n# heading",
    "underlined": "a\n===",
    "front matter": "---\ntitle: x\n---",
    "list": "\n- one\n- two",
    "html block": "\n\n<div onclick=alert(1)>\n\n",
    "table": "a|b\n-|-\n1|2",
    "emphasis": "**bold** _thin_ ~~gone~~",
    "entity": "&lt;b&gt; &#60;script&#62;",
    "escape": "\\`<b>bold</b>\\`",
    "comment": "<!-- --><b>bold</b>",
    "carriage return": "a\r\r<b>bold</b>",
    "line separator": "a\u2028\u2029<b>bold</b>",
    "null": "a\0<b>",
    "terminal": "\x1b[31mred\x1b[0m",
    "turned around": "\u202egnp.tac\u202c",
    "isolates": "\u2066\u2067x\u2069",
    "stray byte": "caf\udce9",
    "blank": " ",
    "blanks around": "  x  ",
    "empty": "",
    "very long": "<b>" * 3000,
    "emoji": "👩\u200d🚀",
    "Persian": "می\u200cخواهم",
}


class Tags(HTMLParser):
    """The elements of rendered Markdown, and their text."""

    def __init__(self, html):
        super().__init__()
        self.names, self.attributes, self.code, self.inside = [], [], [], False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs
        if tag == "code":
            self.inside = True
            self.code.append("")

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "code"

    def handle_data(self, data):
        if self.inside:
            self.code[-1] += data


def rendered(markdown):
    """By a reader that lets HTML through and knows tables: what such a page would do is what counts."""
    return Tags(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown))


CONFIG = preset("P/4@16", classes=2)


def cards(name):
    spent = Cost(seconds=1.0, core_hours=1.0, images=1)
    training = Training(CONFIG, Preprocess(size=(16, 16)))
    request = PretrainRequest(name, method=name, model=name)
    result = PretrainResult(name, name, name, True, 1, 1, {name: 1.0}, (), spent)
    asked = FitRequest(name, weights=name or None, recipe=name)
    fitted = FitResult(name, name, True, (name, "cat"), 1, 1, 1, None, None, {}, None, spent)
    return {
        "fit": model_card(name, asked, training, [name, "cat"], fitted),
        "pretrain": pretrain_card(name, request, training, result),
        "import": import_card(name, [f"{name}: timm ViT"], "ViT", Preprocess(size=(16, 16))),
        "bundle": _plain_card(CONFIG, [name, "cat"]),
    }


PLAIN = {kind: rendered(card) for kind, card in cards("dog").items()}


def test_a_name_in_a_card_does_nothing(subtests):
    lines = {kind: len(card.splitlines()) for kind, card in cards("dog").items()}
    for title, name in HOSTILE.items():
        for kind, card in cards(name).items():
            with subtests.test(title, kind=kind):
                found = rendered(card)
                if kind != "fit" or name:  # a card without weights has one name less
                    assert found.names == PLAIN[kind].names, "elements that the name made"
                assert not found.attributes
                assert not {"a", "img", "script", "iframe", "b", "div"} & set(found.names)
                card.encode("utf-8")
                assert len(card.splitlines()) == lines[kind]
                assert not re.search("[\0-\x09\x0b-\x1f\x7f\u2028\u2029\u202a-\u202e\u2066-\u2069]", card)


def test_the_name_can_be_read(subtests):
    for title, name in HOSTILE.items():
        with subtests.test(title):
            found = rendered(f"classes: {code(name)}, {code('cat')}.")
            assert found.names == ["p", "code", "code"]
            if name.strip() and len(name) < 100:
                assert found.code == [visible(name), "cat"]


def test_what_cannot_be_seen_is_written_out():
    assert visible("a\n\u202eb\udce9") == "a\\n\\u202eb\\udce9"
    assert visible("می\u200cخواهم 👩\u200d🚀\n", allowed="\n") == "می\u200cخواهم 👩\u200d🚀\n"
    assert len(code("x" * 5000)) < 300
