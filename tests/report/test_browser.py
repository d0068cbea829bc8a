"""The pages in a real browser: what it reads from them, that it fits a phone, and that it asks nobody for anything."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from support.comparisons import comparison
from support.contents import content, plain_page, self_training
from support.transfers import FOUND
from vitreous.studies.compare.page import comparison_page
from vitreous.studies.transfer.page import transfer_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]

QUIET = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-dev-shm-usage", "--allow-file-access-from-files",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=10000",
]  # fmt: skip

FRAME = """<!doctype html><body style="margin: 0">
<iframe id="frame" src="{page}" style="width: {width}px; height: 900px; border: 0"></iframe><pre id="found"></pre>
<script>
const frame = document.getElementById("frame");
frame.onload = () => {{
  const page = frame.contentDocument, root = page.documentElement;
  const texts = (selector) => [...page.querySelectorAll(selector)].map((element) => element.textContent);
  const past = (element) => element.getBoundingClientRect().right > root.clientWidth + 1;
  document.getElementById("found").textContent = JSON.stringify({{
    scroll: root.scrollWidth, client: root.clientWidth,
    past: [...page.querySelectorAll("main *")].filter(past).map((e) => e.tagName + " " + e.className).slice(0, 5),
    clipped: [...page.querySelectorAll("table")].filter(
      (table) => table.getBoundingClientRect().width > table.parentElement.clientWidth + 1).length,
    values: texts(".score .value"), plots: texts("svg text"), images: page.images.length,
    broken: [...page.images].filter((image) => !image.naturalWidth).length,
    ink: frame.contentWindow.getComputedStyle(page.querySelector("svg text") || page.body).fill,
    paper: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
  }});
}};
</script>"""


def browse(path, folder, *more):
    """(the document as the browser has it, addresses that the page itself asked for)."""
    log = folder / "net.json"
    words = [CHROMIUM, *QUIET, *more, f"--user-data-dir={folder / 'user'}", f"--log-net-log={log}", "--dump-dom"]
    done = subprocess.run([*words, path.as_uri()], capture_output=True, text=True, timeout=300, check=True)
    events = json.loads(log.read_text())
    start = events["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    asked = [event.get("params", {}) for event in events["events"] if event["type"] == start]
    # The browser's own questions to its makers have no origin; a page's have "file://" or "null".
    return done.stdout, [one["url"] for one in asked if "url" in one and one.get("initiator") != "not an origin"]


def look(text, folder, width=390, *more):
    """What the browser found in a page of this width."""
    (folder / "page.html").write_text(text, encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.format(page="page.html", width=width))
    dom, asked = browse(folder / "frame.html", folder, *more)
    found = dom.split('<pre id="found">')[1].split("</pre>")[0]
    return json.loads(
        found.replace("&nbsp;", " ").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
    ), asked


@pytest.mark.parametrize("classes", [6, 40])
def test_a_browser_reads_the_report_on_a_phone(classes, tmp_path):
    made = content(classes)
    found, asked = look(plain_page(classes), tmp_path)
    test, validation = (one.result for one in made.splits)
    assert found["values"] == [f"{100 * share:.1f} %" for share in (test.top1, validation.top1, test.ece)]
    drawn = re.findall(r"<text[^>]*>(.*?)</text>", plain_page(classes), re.DOTALL)
    assert len(drawn) > 50
    assert found["plots"] == [unescape(re.sub(r"<[^>]+>", "", one)) for one in drawn]
    assert found["scroll"] <= found["client"], found["past"]
    assert found["images"] == 12 + 1  # what the colours of maps mean is one too
    assert not found["broken"]
    assert asked == []


def test_a_comparison_fits_a_phone_and_its_plots_are_text(tmp_path):
    found, asked = look(comparison_page(comparison()), tmp_path)
    assert {"500", "5,000"} <= set(found["plots"])
    assert found["scroll"] <= found["client"], found["past"]  # wide tables scroll by themselves
    assert asked == []


def test_the_page_of_a_transfer_fits_a_phone(tmp_path):
    found, asked = look(transfer_page(FOUND), tmp_path)
    assert found["scroll"] <= found["client"], found["past"]  # wide tables scroll by themselves
    assert asked == []


def test_the_page_of_a_self_training_fits_a_phone_with_any_number_of_rounds(tmp_path):
    found, asked = look(self_training("a class", rounds=12), tmp_path)
    assert found["values"] == ["50.0 %", "50.0 %"]
    assert found["scroll"] <= found["client"], found["past"]
    assert (found["images"], found["broken"], asked) == (2, 0, [])


def test_no_table_is_clipped_on_a_desk(tmp_path, subtests):
    for name, text in (("comparison", comparison_page(comparison())), ("transfer", transfer_page(FOUND))):
        with subtests.test(name):
            found, _ = look(text, tmp_path, 1280)
            assert not found["clipped"]
            assert found["scroll"] <= found["client"], found["past"]


def test_dark_and_light(tmp_path):
    text = plain_page(6)
    found = {}
    for name, value in (("light", 1), ("dark", 0)):
        (tmp_path / name).mkdir()
        found[name], _ = look(text, tmp_path / name, 1000, f"--blink-settings=preferredColorScheme={value}")
    assert found["light"]["paper"] == "rgb(252, 252, 250)"
    assert found["dark"]["paper"] == "rgb(20, 23, 26)"
    assert found["light"]["ink"] != found["dark"]["ink"]  # the plots' letters follow


def test_the_check_would_notice(tmp_path):
    """A page that does ask elsewhere is found out."""
    (tmp_path / "page.html").write_text('<img src="http://elsewhere.invalid/x.png"><style>@import "https://a.invalid/"')
    _, asked = browse(tmp_path / "page.html", tmp_path)
    assert set(asked) == {"http://elsewhere.invalid/x.png", "https://a.invalid/"}
