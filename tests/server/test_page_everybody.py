"""The page for everybody: any model, a token, a phone, the dark, a screen reader; and a file that is no image."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from support.chromium import CHROMIUM
from support.page_driving import approx, bars, chances, choose, give, hand_over, open_page, settled, state, to_serve
from support.serving import running, wait_for
from support.tiny_networks import tiny_bundle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]
AXE = Path(sys.prefix) / "npm" / "node_modules" / "axe-core" / "axe.min.js"


def test_a_file_that_is_no_image(browser, address):
    """A sentence names it, and nothing is left to compare until there is another image."""
    open_page(browser, address)
    for before in (False, True):  # there was an image before
        if before:
            give(browser)
            assert not browser.run("document.getElementById('add-class').hidden")
        browser.run(
            "(() => { const given = new DataTransfer(), file = new File(['no'], 'x.png', { type: 'image/png' });"
            " given.items.add(file);"
            " document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: given, bubbles: true })); })()"
        )
        problem = "!document.getElementById('problem').hidden && document.getElementById('problem').textContent"
        assert browser.until(problem).startswith("x.png: ")
        assert browser.run("document.querySelectorAll('#given button').length") == before
    browser.until("document.getElementById('add-class').hidden")
    browser.click("#samples button:nth-child(1)")
    settled(browser)
    assert not browser.run("document.getElementById('add-class').hidden")
    assert [text for text in browser.complaints() if "422" not in text] == []


def test_an_image_outlives_a_server_that_does_not_answer(browser, address, bundles):
    open_page(browser, address)
    browser.run("window.direct = fetch, window.fetch = () => Promise.reject(new Error('gone')), 0")
    hand_over(browser)
    browser.until("!document.getElementById('problem').hidden && document.getElementById('problem').textContent")
    browser.run("window.fetch = direct, 0")
    browser.click("#given button")
    settled(browser)
    assert bars(browser) == approx(chances(bundles["vit"]))


def test_several_models_and_what_they_lack(browser, bundles):
    models = [
        to_serve("vit", bundles["vit"]),
        to_serve("conv", bundles["conv"]),
        to_serve("graph", bundles["vit"], False),
    ]
    with running(*models) as server:
        open_page(browser, server.address)
        give(browser)
        browser.click("#all-models")
        settled(browser)
        names = browser.run("[...document.querySelectorAll('.model select')].map((one) => one.value)")
        assert names == ["vit", "conv", "graph"]
        missing = browser.run("[...document.querySelectorAll('.missing')].map((one) => one.textContent)")
        assert [bool(text) for text in missing] == [False, True, True]
        assert "attention" in missing[1]
        assert bars(browser, 2) == approx(chances(bundles["conv"]))
        assert bars(browser, 3) == bars(browser, 1)
        browser.run("document.querySelector('.panel:nth-child(1) canvas').focus()")
        browser.press(" ", " ")
        wait_for(lambda: bars(browser, 3) != bars(browser, 1), "the exported model's patch is painted, not left out")
        assert browser.complaints() == []


def test_another_model_has_its_own_classes_and_patches(browser):
    fine, coarse = tiny_bundle("P/4@32"), replace(tiny_bundle("P/4@16", seed=3), labels=("elk", "fox", "gnu", "hen"))
    with running(to_serve("fine", fine), to_serve("coarse", coarse)) as server:
        open_page(browser, server.address)
        give(browser)
        expected = dict(zip(coarse.labels, chances(coarse).values(), strict=True))
        browser.click(".panel canvas", 0.95, 0.95)
        browser.until("location.hash.includes('patch=63')")  # of 64; the other has 16
        browser.mouse("mouseMoved", (1, 1))
        choose(browser, ".model select", "coarse")
        wait_for(lambda: state(browser)["panel"][0].startswith("coarse,"))
        settled(browser)
        assert bars(browser) == approx(expected)
        wait_for(lambda: "patch" not in state(browser))
        browser.until("/^\\D+\\d+\\D*$/.test(document.getElementById('heads-title').textContent)")  # a layer, no patch
        assert browser.complaints() == []


def test_a_token_is_asked_for_and_sent(browser, bundles):
    with running(to_serve("vit", bundles["vit"]), token="open sesame") as server:
        browser.open(server.address)
        browser.until("document.getElementById('ask-token').open")
        browser.run("document.getElementById('token').value = 'öffne dich'")  # which no header can hold
        browser.click("#ask-token button")
        assert browser.run("document.getElementById('ask-token').open && sessionStorage.length === 0")
        for given in ("wrong", " open sesame "):
            browser.until("document.getElementById('ask-token').open")
            browser.run(f"document.getElementById('token').value = '{given}'")
            browser.click("#ask-token button")
        browser.until("document.querySelectorAll('#samples button').length > 9")
        give(browser)
        assert len(bars(browser)) == 4
        said = [text for text in browser.complaints() if "401" not in text]
        assert said == []


def test_a_photograph_by_the_camera_of_a_laptop(browser, address):
    open_page(browser, address)
    browser.until("!document.getElementById('webcam').hidden")
    assert browser.run("getComputedStyle(document.getElementById('webcam')).display") != "none"
    assert browser.run("getComputedStyle(document.getElementById('camera')).display") == "none"  # one of the two
    browser.click("#webcam")
    browser.until("document.getElementById('take-photo').open && !document.getElementById('shoot').disabled")
    assert browser.run("document.activeElement.id") == "shoot"
    browser.click("#shoot")
    settled(browser)
    assert len(bars(browser)) == 4
    assert browser.run("document.querySelector('#given img').alt") == "photo.jpg"
    assert browser.run("document.getElementById('viewfinder').srcObject") is None  # its light goes out
    assert browser.complaints() == []


def test_a_camera_that_cannot_be_used(browser, address):
    browser.open(address)
    browser.until("!document.getElementById('webcam').hidden")
    browser.run(
        "navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('no', 'NotAllowedError')), 0"
    )
    browser.click("#webcam")
    said = browser.until("!document.getElementById('problem').hidden && document.getElementById('problem').textContent")
    assert "camera" in said
    # where there is none, none is offered
    script = browser.send(
        "Page.addScriptToEvaluateOnNewDocument",
        source="navigator.mediaDevices && (navigator.mediaDevices.enumerateDevices = async () => []);",
    )["identifier"]
    browser.open(address)
    browser.send("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    browser.until("document.querySelectorAll('#samples button').length > 9")
    assert browser.run("document.getElementById('webcam').hidden")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_it_fits_and_everybody_can_use_it(browser, address, width, dark):
    """Nothing is wider than the screen; names, roles and contrast hold by axe-core's rules for WCAG 2.1 AA."""
    if not AXE.is_file():
        pytest.skip("needs axe-core: npm install --prefix .venv/npm axe-core")
    browser.open(address, width, dark=dark, reduced=True)
    browser.until("document.querySelectorAll('#samples button').length > 9")
    browser.run(f"{AXE.read_text()}; 0")
    for step in ("", "#webcam", "give", "#add-class"):
        if step == "#webcam":
            browser.click(step)
            browser.until("!document.getElementById('shoot').disabled && document.getElementById('take-photo').open")
        elif step == "give":
            browser.run("document.getElementById('take-photo').close()")
            give(browser)
            browser.run("document.getElementById('help').open = true")
        elif step:
            browser.click(step)
            settled(browser)
        assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        found = browser.run(
            "axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'] })"
            ".then((found) => found.violations.map((one) => [one.id, one.nodes.map((node) => node.html)]))"
        )
        assert found == []
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 26)" if dark else "rgb(252, 252, 250)")
    assert browser.complaints() == []


def test_the_listening_would_notice(browser, address):
    """A page that complains, and asks elsewhere, is found out."""
    open_page(browser, address)
    browser.run("fetch('http://elsewhere.invalid/').catch(() => console.error('refused')), 0")
    wait_for(lambda: any("refused" in text for text in browser.complaints()))
    assert any("Content Security Policy" in text for text in browser.complaints())


ODD = {
    "no classifier": {"classes": 0},
    "grey": {"channels": 1},
    "merges": {"merge": 2, "depth": 3},
    "attention pooling": {"pool": "attention", "class_token": False},
    "wide, padded": {"image_size": (14, 22), "pad": True},
    "near": {"attention": "neighbourhood", "window": 3, "registers": 2},
    "hybrid": {"name": "C+P/4@16"},
    "merges more than others": {"merge": 20, "depth": 3},
}


def test_odd_models_too(browser):
    """All methods of each, and some of it covered: whatever a model is, the page has no complaint."""
    with running(*(to_serve(name, tiny_bundle(**{"name": "P/4@16", **odd})) for name, odd in ODD.items())) as server:
        open_page(browser, server.address)
        give(browser)
        browser.click("#all-models")
        settled(browser)
        assert browser.run("document.querySelectorAll('.panel').length") == len(ODD)
        assert browser.run("document.querySelectorAll('.panel:nth-child(1) .bars li').length") == 0
        assert browser.run("document.querySelector('.panel:nth-child(8) .merge output').textContent") == "20"
        for method in ("attention", "rollout", "gradcam", "tokens", "occlusion"):
            browser.run(
                "for (const choice of document.querySelectorAll('.method select')) {"
                f" if (![...choice.options].some((one) => one.value === '{method}')) continue;"
                f" choice.value = '{method}'; choice.dispatchEvent(new Event('change')); }}"
            )
            settled(browser)
        browser.click(".panel:nth-child(5) canvas", 0.97, 0.9)  # the last column, half of which is padding
        browser.until("/4\\D+6/.test(document.getElementById('heads-title').textContent)")  # row and column
        browser.run("document.querySelector('.panel:nth-child(3) canvas').focus()")
        browser.press(" ", " ")
        browser.until("location.hash.includes('covered=4x4')")
        settled(browser)
        assert browser.run("document.getElementById('problem').textContent") == ""
        assert browser.complaints() == []
