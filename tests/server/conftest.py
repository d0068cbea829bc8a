"""A browser, and a server whose page it opens."""

from urllib.parse import urlsplit

import pytest

from support.chromium import Browser
from support.page_driving import open_page, to_serve
from support.serving import running
from support.tiny_networks import tiny_bundle


@pytest.fixture(scope="module")
def bundles():
    return {"vit": tiny_bundle("P/4@16", depth=3, heads=4), "conv": tiny_bundle("bit-r11x0.5@32")}


@pytest.fixture(scope="module")
def address(bundles):
    with running(to_serve("vit", bundles["vit"])) as server:
        yield server.address


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser, address):
    """The page, open, with nothing on it yet; whatever is done to it, it complains of nothing and asks nobody else."""
    open_page(browser, address)
    yield browser
    assert browser.complaints() == []
    assert {urlsplit(url).netloc for url in browser.asked() if url.startswith("http")} == {urlsplit(address).netloc}
