"""Images and command lines that no server should trust."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from support.colours import make_bundle
from support.commands import check_refused, run_command
from support.hostile_data import IMAGE_FILES
from support.serving import make_image, opened, running


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("models") / "colours")


@pytest.fixture(scope="module")
def server(bundle):
    with running(opened(bundle)) as server:
        yield server


def test_a_bad_image_gets_a_sentence(server, subtests):
    for case, content in IMAGE_FILES.items():
        with subtests.test(case):
            for path in ("/predict", "/embed", "/explain"):
                refused = server.client.post(path, content=content)
                assert refused.status_code == 422, refused.text
                assert refused.json()["error"].endswith(".")


def test_bad_images_do_not_fail_the_good_ones_beside_them(server):
    contents = [
        content
        for pair in zip(IMAGE_FILES.values(), map(make_image, ["red"] * len(IMAGE_FILES)), strict=True)
        for content in pair
    ]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda content: server.client.post("/predict", content=content).status_code, contents))
    assert found == [422, 200] * len(IMAGE_FILES)


def test_command_lines_that_make_no_sense(bundle, subtests, monkeypatch):
    monkeypatch.delenv("VITREOUS_TOKEN", raising=False)
    for words, *names in (
        ((), "models"),
        (("nowhere",), "nowhere"),
        ((bundle, "--port", "70000"), "--port"),
        ((bundle, "--port", "-1"), "--port"),
        ((bundle, "--host", "0.0.0.0"), "host='0.0.0.0'", "VITREOUS_TOKEN"),
        ((bundle, "--host", "::"), "host='::'", "VITREOUS_TOKEN"),
        ((bundle, "--host", "no such host"), "host='no such host'", "VITREOUS_TOKEN"),
        ((bundle, "--token", "short"), "token"),
        ((bundle, "--allow-origin", "*"), "allow_origin='*'", "VITREOUS_TOKEN"),
        ((bundle, "--allow-origin", "https://a.example,b.example"), "b.example"),
        ((bundle, "--allow-origin", "https://a.example/"), "https://a.example/"),
        ((bundle, "--token", "ééééééééééééééééééé"), "token"),
        ((bundle, "--host", "127.0.0.1", "--port", "1", "--engine", "magic"), "--engine"),
    ):
        with subtests.test(words=words[1:] or words):
            check_refused(run_command("serve", *words), *names)
