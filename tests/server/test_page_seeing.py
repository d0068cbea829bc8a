"""What a person sees on the page without scrolling or searching, in a real browser."""

from dataclasses import replace

import httpx
import numpy as np
import pytest
from PIL import Image

from support.chromium import CHROMIUM
from support.commands import check_refused, run_command
from support.page_driving import canvas, chances, choose, give, open_page, settled, to_serve
from support.serving import GatedEngine, gated, loading, running, wait_for
from support.tiny_networks import LABELS
from vitreous.glossary import GLOSSARY
from vitreous.verbs.serve import read_samples

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]


def box(browser, selector):
    """Top and bottom of an element on the screen as it is, without scrolling."""
    return browser.run(
        f"(() => {{ const box = document.querySelector('{selector}').getBoundingClientRect();"
        " return [box.top, box.bottom]; })()"
    )


def test_the_answers_are_on_a_phones_first_screen(browser, address):
    browser.open(address, 390, 844, reduced=True)
    browser.until("document.querySelectorAll('#samples button').length > 9")
    give(browser)
    browser.run("scrollTo(0, 0)")
    assert box(browser, ".bars")[1] <= 844
    assert box(browser, ".panel .image > canvas")[1] < box(browser, ".bars")[0]


def test_pointing_at_a_patch_shows_its_heads_on_the_same_screen(browser, address):
    browser.open(address, 1280, 900, reduced=True)
    browser.until("document.querySelectorAll('#samples button').length > 9")
    give(browser)
    before = browser.run("document.getElementById('heads-title').textContent")
    browser.run("scrollTo(0, 0)")
    left, top, width, height = browser.run(
        "(() => { const box = document.querySelector('.panel .image > canvas').getBoundingClientRect();"
        " return [box.left, box.top, box.width, box.height]; })()"
    )
    browser.mouse("mouseMoved", (left + 0.6 * width, top + 0.4 * height))
    browser.until(f"document.getElementById('heads-title').textContent !== {before!r}")
    assert box(browser, "#multiples")[1] <= 900
    assert browser.run("scrollY") == 0


def test_the_new_winner_is_marked_when_something_is_covered(page, bundles):
    """The cells are covered one by one until the network itself holds another class for the likeliest."""
    give(page)
    marked = "[...document.querySelectorAll('.bars li')].filter((row) => !row.querySelector('.winner').hidden)"
    names = f"{marked}.map((row) => row.querySelector('.name').textContent)"
    assert page.run(names) == []
    first = chances(bundles["vit"])
    best = max(first, key=first.get)
    rng = np.random.default_rng(0)
    tries = (sorted(rng.choice(16, size=rng.integers(1, 15), replace=False).tolist()) for _ in range(1000))
    cells = next(one for one in tries if max(found := chances(bundles["vit"], covered=one), key=found.get) != best)
    found = chances(bundles["vit"], covered=cells)
    page.run(f"location.hash += '&covered=4x4:{'.'.join(map(str, cells))}'")
    wait_for(lambda: page.run(names) == [max(found, key=found.get)])
    page.click("#uncover")
    wait_for(lambda: page.run(names) == [])


def test_models_agree_or_disagree(browser, bundles):
    other = replace(bundles["vit"], labels=tuple(reversed(LABELS)))
    verdict = "!document.getElementById('verdict').hidden && document.getElementById('verdict').textContent"
    for second, agree in ((bundles["vit"], True), (other, False)):
        with running(to_serve("one", bundles["vit"]), to_serve("two", second)) as server:
            open_page(browser, server.address)
            give(browser)
            assert not browser.run(verdict)
            browser.click("#all-models")
            settled(browser)
            said = browser.until(verdict)
            assert ("disagree" in said) is not agree
            best = max(chances(bundles["vit"]).items(), key=lambda pair: pair[1])[0]
            assert best in said


def test_the_original_is_one_key_away(page):
    give(page)
    mapped = canvas(page)
    page.press("o", "o")
    wait_for(lambda: np.abs(canvas(page) - mapped).mean() > 1)
    original = canvas(page)
    assert page.run("document.getElementById('original').getAttribute('aria-pressed')") == "true"
    page.press("o", "o")
    wait_for(lambda: np.array_equal(canvas(page), mapped))
    choose(page, ".method select", "none")
    settled(page)
    assert np.array_equal(canvas(page), original)
    assert page.run("document.querySelector('.legend').hidden")


def test_the_heading_says_what_is_told_apart_and_words_are_explained(page):
    assert all(label in page.run("document.querySelector('h1').textContent") for label in LABELS)
    give(page)
    page.click(".layer .why")
    assert page.run("document.querySelector('.meaning').textContent") == GLOSSARY["layer"]
    page.click(".layer .why")
    assert page.run("document.querySelector('.meaning').hidden")


def test_a_file_of_another_kind_is_named(page):
    page.run(
        "(() => { const given = new DataTransfer();"
        " given.items.add(new File(['no'], 'notes.txt', { type: 'text/plain' }));"
        " document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: given, bubbles: true })); })()"
    )
    assert page.until("document.getElementById('problem').textContent").startswith("notes.txt: ")


def test_a_link_with_thousands_of_panels(browser, address):
    browser.open(f"{address}#sample=1" + "&panel=vit,none,0,0,,0" * 3000)
    settled(browser)
    assert 1 < browser.run("document.querySelectorAll('.panel').length") <= 16


def test_the_page_opens_by_itself_once_the_models_are_loaded(browser):
    with loading() as (address, gate):
        browser.open(address)
        browser.until("document.getElementById('invitation').textContent.includes('loading')")
        assert browser.run("getComputedStyle(document.querySelector('#drop .buttons')).display") == "none"
        gate.set()
        browser.until("document.querySelectorAll('#samples button').length > 9")
        assert "gated" in browser.run("document.getElementById('about').textContent")
        assert "loading" not in browser.run("document.getElementById('drop').textContent")


def test_samples_of_a_persons_own(tmp_path):
    """In turn from each class, and nothing but images."""
    for label in ("bee", "ant"):
        (tmp_path / label).mkdir()
        for number in range(20):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / label / f"{number:02}.png")
        (tmp_path / label / "labels.txt").write_text("secret")
    samples = read_samples(tmp_path, pytest.fail)
    assert [name for name, _ in samples[:4]] == ["ant/00.png", "bee/00.png", "ant/01.png", "bee/01.png"]
    assert len(samples) == 12
    with running(gated(GatedEngine()), samples=samples) as server:
        assert server.client.get("/page/start").json()["samples"][:2] == ["ant/00.png", "bee/00.png"]
        found = server.client.get("/page/samples/1")
        assert found.content == (tmp_path / "bee/00.png").read_bytes()
        assert found.headers["content-type"] == "image/png"
        assert server.client.get("/page/samples/12").status_code == 404
    with running(gated(GatedEngine()), samples=samples, token="x" * 20) as closed:
        assert httpx.get(f"{closed.address}/page/samples/0").status_code == 401
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "nowhere"):
        check_refused(run_command("serve", "model", "--samples", tmp_path / folder), "samples", folder)
