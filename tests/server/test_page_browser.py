"""The page in a real browser: what a person does with it, checked against what Python says of the same image."""

import numpy as np
import pytest
from PIL import Image

from support.chromium import CHROMIUM
from support.page_driving import (
    IMAGE,
    approx,
    bars,
    canvas,
    chances,
    choose,
    covered_cells,
    drawn,
    give,
    move,
    open_page,
    settled,
    state,
    to_serve,
)
from support.serving import running, wait_for
from support.tiny_networks import tiny_bundle
from vitreous import Model
from vitreous.data.view import image_and_view
from vitreous.inference.engine import open_in_torch
from vitreous.server.served_model import ModelToServe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]


def test_the_classes_of_an_image_as_bars(page, bundles, address):
    for how in ("drop", "paste"):
        open_page(page, address)
        give(page, how)
        assert bars(page) == approx(chances(bundles["vit"]))
        best = max(chances(bundles["vit"]).items(), key=lambda pair: pair[1])[0]
        assert page.until("document.querySelector('.bars [aria-pressed=true] .name').textContent") == best
        assert page.until("document.getElementById('spoken').textContent").startswith(best)  # a screen reader says it


def test_the_overlay_is_that_of_explain(page, bundles):
    give(page)
    for method, layer in (("relevance", 2), ("attention", 1), ("rollout", 0), ("gradcam", 1)):
        choose(page, ".method select", method)
        settled(page)
        choose(page, ".layer input", layer)
        page.until(
            f"document.querySelector('.layer output').textContent === '{layer}' && location.hash.includes('{method}')"
        )
        wait_for(lambda name=f"{method},{layer},": name in state(page)["panel"][0], "the slider has come to rest")
        found = canvas(page)
        expected = drawn(
            Model(bundles["vit"]).explain(IMAGE, method=method, layer=layer), bundles["vit"], found.shape[1::-1]
        )
        assert np.abs(found - expected).mean() < 6, method
        assert expected.std() > 10


def test_sliders_ask_nothing_and_glide(page, bundles):
    give(page)
    choose(page, ".method select", "attention")
    settled(page)
    choose(page, ".layer input", 0)
    wait_for(lambda: "attention,0," in state(page)["panel"][0])
    before, asked = canvas(page), len(page.asked())
    page.run("document.querySelector('.layer input').focus()")
    page.press("ArrowRight")
    wait_for(lambda: "attention,1," in state(page)["panel"][0])
    after = canvas(page)
    move(page, ".layer input", 0.5)
    between = canvas(page)
    move(page, ".head input", 3)
    other_head = canvas(page)
    assert len(page.asked()) == asked
    assert np.abs(after - before).mean() > 1
    assert np.abs(between - before).mean() < np.abs(after - before).mean()
    assert np.abs(between - after).mean() < np.abs(after - before).mean()
    assert np.abs(other_head - between).mean() > 1


def test_a_patch_shows_where_it_looks_in_every_head(page, bundles):
    give(page)
    choose(page, ".layer input", 1)
    wait_for(lambda: "relevance,1," in state(page)["panel"][0])
    page.click(".panel canvas", 0.6, 0.4)  # the second row, the third column
    title = "document.getElementById('heads-title').textContent"
    page.until(f"/2\\D+3\\D+1/.test({title})")  # row, column, layer
    page.until("location.hash.includes('patch=6')")
    assert page.run("document.querySelectorAll('#multiples canvas').length") == 4
    box = image_and_view(IMAGE, bundles["vit"].preprocess).box
    point = (box[0] + 0.6 * (box[2] - box[0]), box[1] + 0.4 * (box[3] - box[1]))
    for head in range(4):
        found = canvas(page, f"#multiples button:nth-child({head + 1}) canvas")
        one = Model(bundles["vit"]).explain(IMAGE, method="attention", layer=1, head=head, query=point)
        assert (
            np.abs(found - drawn(one, bundles["vit"], found.shape[1::-1])).mean() < 12
        )  # it has a ring of another kind
    page.hover(".panel canvas", 0.1, 0.9)
    page.until(f"/4\\D+1\\D+1/.test({title})")
    page.click("#multiples button:nth-child(3)")
    settled(page)
    wait_for(lambda: "attention,1,3," in state(page)["panel"][0], "a click on a head shows it large")


def test_what_is_painted_over_is_not_seen(page, bundles):
    give(page)
    hint = page.run("document.querySelector('.hint').textContent")
    page.click("input[value=cover] + span")
    page.drag(".panel canvas", [(0.1, 0.1), (0.3, 0.15), (0.6, 0.4)])
    wait_for(lambda: len(covered_cells(page)) >= 3)
    expected = chances(bundles["vit"], covered=covered_cells(page))
    wait_for(lambda: bars(page) == approx(expected), "live")
    assert {0, 6} <= covered_cells(page)
    wait_for(lambda: page.run("document.querySelector('.hint').textContent") != hint, "the map is of the whole image")
    assert expected != pytest.approx(chances(bundles["vit"]), abs=1)
    page.click("#uncover")
    wait_for(lambda: bars(page) == approx(chances(bundles["vit"])))


def test_before_and_after_are_of_one_network(browser, bundles):
    """The engine may compute in coarser numbers than the network that is looked into: here, it is another one."""
    other = tiny_bundle("P/4@16", seed=7, depth=3, heads=4)
    with running(ModelToServe("vit", open_in_torch(other, "cpu"), bundles["vit"])) as server:
        open_page(browser, server.address)
        give(browser)
        assert bars(browser) == approx(chances(other))
        browser.run("document.querySelector('.panel canvas').focus()")
        browser.press(" ", " ")
        expected = chances(bundles["vit"], covered={10})
        wait_for(lambda: bars(browser) == approx(expected))
        marks = browser.run(
            "[...document.querySelectorAll('.bars li')].map((row) =>"
            " [row.querySelector('.name').textContent, parseFloat(row.querySelector('b').style.left)])"
        )
        assert dict(marks) == approx(chances(bundles["vit"]))
        browser.click("#uncover")
        wait_for(lambda: bars(browser) == approx(chances(other)))
        assert browser.complaints() == []


def level_at(bundle, x, y):
    """How high the map is at a place of the view, of the range that its colours span."""
    found, box = Model(bundle).explain(IMAGE).map, image_and_view(IMAGE, bundle.preprocess).box
    left, top, right, bottom = map(round, box)
    seen = found[top:bottom, left:right]
    low, high = np.quantile(seen, (0, 0.995))
    return min((seen[int(y * len(seen)), int(x * len(seen[0]))] - low) / (high - low), 1)


def test_everything_by_keys(page, bundles):
    give(page)
    page.run("document.querySelector('.panel canvas').focus()")
    page.press("ArrowLeft")  # from the middle, row 3 and column 3
    page.press("ArrowUp")
    said = page.until("(/2\\D+2\\D+([\\d.]+)\\s%/.exec(document.getElementById('spoken').textContent) ?? [])[1]")
    assert float(said) == pytest.approx(100 * level_at(bundles["vit"], 1.5 / 4, 1.5 / 4), abs=3)
    page.press(" ", " ")
    page.until("/^\\D+2\\D+2\\D*$/.test(document.getElementById('spoken').textContent)")  # row and column
    page.press("ArrowUp")
    page.press(" ", " ")
    wait_for(lambda: covered_cells(page) == {1, 5})
    expected = chances(bundles["vit"], covered={1, 5})
    wait_for(lambda: bars(page) == approx(expected))
    page.press("Enter")
    page.until("location.hash.includes('patch=1')")
    page.press("Escape")
    wait_for(lambda: "patch" not in state(page))
    assert covered_cells(page) == {1, 5}
    page.press("ArrowUp")
    page.press("Escape")  # lets go of the patch that the arrows chose
    page.press("Escape")
    wait_for(lambda: covered_cells(page) == set() and "patch" not in state(page))


def test_two_classes_and_two_methods_beside_each_other(page, bundles):
    give(page)
    ranked = sorted(chances(bundles["vit"]).items(), key=lambda pair: -pair[1])
    page.click("#add-class")
    settled(page)
    pressed = "[...document.querySelectorAll('.bars [aria-pressed=true] .name')].map((one) => one.textContent)"
    assert page.run(pressed) == [ranked[0][0], ranked[1][0]]
    pair = canvas(page, ".panel:nth-child(1) canvas"), canvas(page, ".panel:nth-child(2) canvas")
    for found, (label, _) in zip(pair, ranked, strict=False):
        one = Model(bundles["vit"]).explain(IMAGE, target=label)
        assert np.abs(found - drawn(one, bundles["vit"], found.shape[1::-1])).mean() < 6
    page.click(".panel:nth-child(2) .close")
    settled(page)
    page.click("#add-method")
    settled(page)
    methods = page.run("[...document.querySelectorAll('.method select')].map((one) => one.value)")
    assert methods == ["relevance", "gradcam"]


def test_what_is_compared_stays_with_the_next_image(page):
    give(page)
    page.click("#add-class")
    settled(page)
    pressed = "[...document.querySelectorAll('.bars [aria-pressed=true] .name')].map((one) => one.textContent)"
    classes = page.run(pressed)
    assert len(set(classes)) == 2
    page.click("#samples button:nth-child(1)")
    page.until("location.hash.includes('sample=0')")
    settled(page)
    assert page.run(pressed) == classes
    titles = page.run("[...document.querySelectorAll('.panel')].map((one) => one.getAttribute('aria-label'))")
    assert all(name in title and "vit" in title for name, title in zip(classes, titles, strict=True))
    spoken = "document.getElementById('spoken').textContent"
    wait_for(lambda: all(title in page.run(spoken) for title in titles), "a screen reader says both")


def test_an_answer_about_another_image_is_dropped(page):
    """Somebody covers a patch, and takes another image before the answer is here."""
    page.click("#samples button:nth-child(1)")
    settled(page)
    expected = bars(page)
    give(page)
    page.run(
        "window.direct = fetch, window.fetch = (path, given) => path.startsWith('/page/cover') ?"
        " new Promise((resolve) => { window.late = () => direct(path, given).then(resolve); }) :"
        " direct(path, given), 0"
    )
    page.run("document.querySelector('.panel canvas').focus()")
    page.press(" ", " ")
    page.until("window.late !== undefined")
    page.click("#samples button:nth-child(1)")
    page.until("location.hash.includes('sample=0')")
    settled(page)
    page.run("late().then(() => new Promise((done) => setTimeout(done, 50)))")  # its answer has come, and is dropped
    assert bars(page) == expected


def test_what_was_painted_stays_until_another_model_has_answered(browser, bundles):
    finer = tiny_bundle("P/4@32", depth=3, heads=4)
    with running(to_serve("vit", bundles["vit"]), to_serve("finer", finer)) as server:
        open_page(browser, server.address)
        give(browser)
        painted = canvas(browser)
        browser.run(
            "window.direct = fetch, window.fetch = (path, given) => path.startsWith('/page/image') ?"
            " new Promise((resolve) => { window.late = () => resolve(direct(path, given)); }) : direct(path, given), 0"
        )
        choose(browser, ".model select", "finer")
        browser.until("window.late !== undefined")
        browser.run("document.querySelector('.panel canvas').focus()")
        browser.press("ArrowRight", " ")  # points at a patch and covers it, which is drawn
        assert np.array_equal(canvas(browser), painted)
        browser.run("late(), 0")
        settled(browser)
        assert np.abs(canvas(browser) - painted).mean() > 1
        assert browser.complaints() == []


def test_tokens_as_colours_and_what_was_merged(page):
    give(page)
    plain = canvas(page)
    choose(page, ".method select", "tokens")
    settled(page)
    coloured = canvas(page)
    assert np.abs(coloured - plain).mean() > 10
    choose(page, ".merge input", 2)
    page.until("/16\\D+12\\D/.test(document.querySelector('.hint').textContent)")  # patches are tokens
    settled(page)
    assert np.abs(canvas(page) - coloured).mean() > 1  # outlines
    page.run("document.querySelector('.merge input').focus()")
    page.press("ArrowRight")
    page.until("/16\\D+10\\D/.test(document.querySelector('.hint').textContent)")


def test_a_link_brings_everything_back(page, address):
    page.click("#samples button:nth-child(2)")
    settled(page)
    choose(page, ".method select", "attention")
    settled(page)
    choose(page, ".head input", 2)
    page.run("document.querySelector('.panel canvas').focus()")
    page.press(" ", " ")
    page.press("Enter")
    wait_for(lambda: covered_cells(page) == {10} and state(page).get("patch") == ["10"])
    wait_for(lambda: "attention,2,2," in state(page)["panel"][0])
    seen, answers, link = canvas(page), bars(page), page.run("location.href")
    page.open(link)
    settled(page)
    wait_for(lambda: bars(page) == answers)
    page.until("/3\\D+3/.test(document.getElementById('heads-title').textContent)")  # row and column
    assert page.run("location.href") == link
    page.mouse("mouseMoved", (1, 1))
    assert np.abs(canvas(page) - seen).mean() < 1


def test_a_link_to_the_map_of_attention_pooling(browser):
    with running(to_serve("pool", tiny_bundle("P/4@16", pool="attention", class_token=False))) as server:
        browser.open(f"{server.address}#sample=1&panel=pool,attention,2,0,,0")
        settled(browser)
        assert browser.until("document.querySelector('.layer output').textContent") == "pooling"
        wait_for(lambda: "pool,attention,2," in state(browser)["panel"][0])
        assert browser.complaints() == []


def test_nonsense_in_a_link_is_ignored(browser, address, subtests):
    for covered, patch in (("0x0:5", "77"), ("1.5x4:5", "2.5"), ("9999x9999:5", "1e1.5")):
        with subtests.test(covered=covered, patch=patch):
            browser.open(f"{address}#sample=1&panel=vit,magic,99,-3,1e9,x&panel=%25%25&covered={covered}&patch={patch}")
            settled(browser)
            wait_for(lambda: state(browser)["panel"] == ["vit,relevance,2,0,,0", "vit,relevance,2,0,,0"])
            assert not {"covered", "patch"} & state(browser).keys()
            assert browser.complaints() == []
    for covered in ("4x4:", "4x4", "4x4:.", "4x4:-", "4x4:x"):
        with subtests.test(covered=covered):
            browser.open(f"{address}#sample=1&panel=vit,relevance,2,0,,0&covered={covered}")
            settled(browser)
            wait_for(lambda: "covered" not in state(browser))
            assert browser.run("document.getElementById('uncover').disabled")


def test_a_link_to_patches_covered_on_a_fine_grid(browser):
    """As fine as the server takes them: DINOv2 at 1,036 pixels has 74 x 74. nginx refuses addresses above 8 kB."""
    fine = tiny_bundle("P/4@288", depth=1, width=16, heads=1, mlp_width=16)
    with running(to_serve("fine", fine)) as server:
        browser.open(f"{server.address}#sample=1&panel=fine,none,0,0,,0&covered=72x72:0-4000")
        settled(browser)
        assert not browser.run("document.getElementById('uncover').disabled")
        wait_for(lambda: covered_cells(browser) == set(range(4001)))
        wait_for(lambda: any("/page/cover" in url and "fff" in url for url in browser.asked()))
        assert max(map(len, browser.asked())) < 2000
        assert browser.complaints() == []


def test_save_and_link(page, tmp_path):
    give(page)
    page.click("#link")
    page.until("document.getElementById('note').textContent")  # that the image, which is no sample, is not in the link
    page.click("#add-class")
    settled(page)
    page.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.click("#save")
    file = tmp_path / "squares-relevance.png"
    wait_for(lambda: file.is_file() and file.stat().st_size)
    with Image.open(file) as saved:
        assert saved.width == 2 * 720 + 3 * 36
        assert np.asarray(saved.convert("RGB"))[36:756, 36:756].std() > 10
