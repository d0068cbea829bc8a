"""The page as text: its numbers are those of the results, and nothing in a name can break it."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np

from support.contents import NASTY, bundle, content, plain_page, scored
from vitreous.evaluation.calibration import Bin
from vitreous.model.family import count_parameters
from vitreous.report.numbers import duration, operations, parameters
from vitreous.report.page import Content, page
from vitreous.report.plots import POINTS, _thinned

VOID = {"meta", "link", "img", "br"}


class Reader(HTMLParser):
    """The page's elements and its text; fails where elements are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words, self.addresses = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("href", "src", "xlink:href", "srcset", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.words))


def section(made, name):
    return re.search(rf'<section id="{name}">.*?</section>', made, re.DOTALL)[0]


def test_the_numbers_are_those_of_the_results(subtests):
    for classes in (2, 6, 40, 300):
        with subtests.test(classes=classes):
            splits, made = content(classes).splits, plain_page(classes)
            for one in splits:
                assert f'id="accuracy-{one.name}">{100 * one.result.top1:.1f}\u00a0%<' in made
            test, validation = (one.result for one in splits)
            low, high = (f"{100 * share:.1f}" for share in test.top1_interval)
            text = Reader(made).text
            assert re.search(rf"\b{test.n} \D+95 % \D+{low} to {high} %", text)
            assert re.search(rf"\b{validation.n} ", text)
            assert f'id="ece">{100 * test.ece:.1f}\u00a0%<' in made
            hardest = min(test.per_class.values(), key=lambda entry: entry["accuracy"] if entry["n"] else 2)
            assert f"{100 * hardest['accuracy']:.1f} %" in text
            for pair in test.most_confused(3):
                assert re.sub(r"\s+", " ", pair.true) in text
            assert re.search(r"12,345\D+25 TFLOP", text)
            assert re.search(r"13 min\D+0\.41 ", text)
            assert "2 Wh" in text
            assert re.search(r"40 \D+8 \D+2\.5 \D+30 ", text)  # steps, batch, epochs, the step that was kept


def test_the_interval_of_images_that_chose_the_weights_is_called_optimistic():
    """Their accuracy is the best of several: an interval alone would claim more than it can."""
    test, validation = content().splits
    for splits, optimistic in (((test,), 0), ((validation,), 1), ((test, validation), 1)):
        made = page(replace(content(), splits=splits))
        assert Reader(made).text.count("95 % interval") == made.count('class="interval"') == len(splits)
        assert Reader(made).text.count("optimistic") == optimistic


def test_data_without_splits_are_just_images():
    found = scored("all")
    text = Reader(page(replace(content(), splits=(found,)))).text
    n, wrong = found.result.n, round(found.result.n * (1 - found.result.top1))
    assert f"{wrong} of {n} " in text
    assert not re.search(r"\ball (\w+) \1\b", text)  # "all images images"
    metrics = {**found.result.metrics, "top1": 1.0}
    all_right = replace(found, result=replace(found.result, metrics=metrics))
    right = section(page(replace(content(), splits=(all_right,))), "mistakes")
    assert f" {n} " in right
    assert "<table" not in right


def test_a_small_model_has_as_many_parameters_as_it_has():
    assert f" {count_parameters(bundle().model.config):,} " in Reader(plain_page(6)).text
    assert parameters(99_999).startswith("99,999 ")
    assert parameters(5_717_416).startswith("5.7 million ")


def test_a_matrix_up_to_forty_classes_and_pairs_above():
    assert "<svg" in section(plain_page(40), "mistakes")
    large = plain_page(300)
    assert "<svg" not in section(large, "mistakes")
    assert "<table" in section(large, "mistakes")
    seen = sum(entry["n"] > 0 for entry in content(300).splits[0].result.per_class.values())
    assert re.search(rf"<summary>\D*{seen}\D*</summary>", large)
    assert len(large) < 3e6


def test_names_cannot_break_it():
    found = Reader(plain_page(6))
    assert not {"script", "iframe", "object", "i>"} & set(found.tags)
    for name in NASTY[:5]:
        assert name in found.text
    assert "a <run>" in found.text
    assert "images & more" in found.text
    assert "vitreous predict 'runs/it'\"'\"'s here' " in found.text  # to be pasted in a shell


def test_it_needs_nothing_else():
    found = Reader(plain_page(6))
    assert found.addresses
    assert all(address.startswith(("#", "data:")) for address in found.addresses)
    assert "@import" not in plain_page(6)
    assert "url(" not in plain_page(6).replace("url(#", "")  # of clip paths within the page


def test_plots_take_the_page_colours_and_keep_their_letters():
    made = plain_page(6)
    plots = re.findall(r"<svg.*?</svg>", made, re.DOTALL)
    assert len(plots) == 8  # loss, accuracy, rate; confusion; calibration; filters, positions, attention distance
    for plot in plots:
        assert "<text" in plot
        assert "var(--ink)" in plot or "var(--quiet)" in plot
        assert not re.search(r"#0[0-9a-f]0[0-9a-f]0[0-9a-f]", plot)
        assert "DejaVu" not in plot
        assert "<style" not in plot  # it would apply to the whole page


def test_all_right_has_no_mistakes_to_show():
    found = scored(classes=2, n=40)
    all_right = replace(found.result, metrics={**found.result.metrics, "top1": 1.0}, surest_wrong=())
    made = page(replace(content(2), splits=(replace(found, result=all_right, wrong=()),)))
    assert " 40 " in section(made, "mistakes")
    assert "<table" not in section(made, "mistakes")
    assert made.count('class="examples"') == 1  # of those that are right


def test_few_images_do_not_call_a_model_too_sure():
    """80 % sure and 70 % right: of 10 images that is chance, of 1,000 it is not."""
    found = scored(classes=2, n=40)
    for n, told in ((10, False), (1000, True)):
        metrics = {**found.result.metrics, "top1": 0.7}
        result = replace(found.result, n=n, metrics=metrics, bins=(Bin(n, 0.8, 0.7),))
        made = section(page(replace(content(2), splits=(replace(found, result=result),))), "calibration")
        assert ("too sure." in made) is told


def test_a_bundle_alone_says_what_it_can():
    made = page(Content("imported", "imported", bundle(), card="# A card\n<b>"))
    assert 'class="score"' not in made
    assert 'id="training"' not in made
    text = Reader(made).text
    assert "16, 2, 2" in text  # width, depth, heads
    assert re.search(r"2×4 \D*4×4 ", text)
    assert "# A card <b>" in text


def test_a_run_with_a_teacher_names_it_and_how_it_taught():
    made = content(2)
    text = Reader(page(replace(made, run=replace(made.run, teacher="runs/teacher", start="ti16")))).text
    assert "fine-tuned from ti16 with runs/teacher as its teacher" in text
    assert f"runs/teacher: {made.run.training.objective.description}" in text


def test_a_name_with_stray_bytes_can_be_written():
    made = page(replace(content(2), left_out=("caf\udce9.jpg: damaged",)))
    made.encode("utf-8")
    assert "caf\\udce9.jpg: damaged" in made


def test_amounts_in_words():
    assert [duration(s) for s in (3.4, 119, 121, 7199, 36000)] == ["3 s", "119 s", "2 min", "2 h 0 min", "10 h 0 min"]
    assert [operations(f) for f in (12, 2.33e9, 1e15)] == ["12 FLOP", "2.33 GFLOP", "1 PFLOP"]


def test_a_long_curve_is_drawn_by_means_over_neighbouring_steps():
    steps, values = np.arange(2 * POINTS), np.random.default_rng(0).random(2 * POINTS)
    drawn_steps, drawn_values = _thinned(list(steps), list(values))
    np.testing.assert_allclose(drawn_steps, steps.reshape(-1, 2).mean(axis=1))
    np.testing.assert_allclose(drawn_values, values.reshape(-1, 2).mean(axis=1))
