"""Who may ask, and what every answer says."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.serving import GatedEngine, gated, make_image, running, wait_for
from vitreous.model.network import check_numbers

TOKEN = "correct horse battery staple"


@pytest.fixture(scope="module")
def server():
    with running(gated(GatedEngine())) as server:
        yield server


@pytest.fixture(scope="module")
def closed():
    """A server with a token."""
    with running(gated(GatedEngine()), token=TOKEN) as server:
        yield server


FOREIGN = ("example.com", "127.0.0.1.example.com", "localhost.example.com", "192.168.0.1", "a@127.0.0.1", "", "::")
MALFORMED = ("[", "][", "a[b]", "[abc]", "[::1", "localhost:x", "\xb2", "a" * 1000, "localhost@evil.example")


def test_only_names_of_this_machine_are_answered(server, subtests):
    """Somebody else's name may have been made to point here."""
    for host in ("localhost", "localhost:8000", "127.0.0.1:1", "127.1.2.3", "[::1]:80", "a.localhost"):
        with subtests.test(host):
            assert server.client.get("/v2/health/live", headers={"Host": host}).status_code == 200
    for host in (*FOREIGN, *MALFORMED):
        with subtests.test(host):
            refused = server.client.get("/v2/health/live", headers={"Host": host.encode("latin-1")})
            assert refused.status_code == 421
            assert list(refused.json()) == ["error"]


ORIGINS = (
    *("http://example.com", "null", "http://127.0.0.1:1", "http://[", "http://a:b", ""),
    *("http://a[b]:80", "http://\xe9", "//", "http://localhost:x"),
)


def test_a_page_of_another_server_cannot_ask(server, subtests):
    own = {"Origin": server.address}
    assert server.client.post("/predict", content=make_image(), headers=own).status_code == 200
    for origin in ORIGINS:
        with subtests.test(origin):
            headers = {"Origin": origin.encode("latin-1")}
            assert server.client.post("/predict", content=make_image(), headers=headers).status_code == 403
            assert server.client.get("/", headers=headers).status_code == 403


FRIEND = "https://photos.example"


def preflight(server, origin, path="/predict"):
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    return server.client.options(path, headers={"Origin": origin, **asked})


def test_a_page_that_was_allowed_asks_and_reads_the_answer(subtests):
    """As the Fetch standard says: the preflight brings no token; each answer, a refusal too, names the origin."""
    for token in (None, TOKEN):
        model = gated(GatedEngine())
        with subtests.test(token=token), running(model, token=token, allowed_origins=(FRIEND,)) as server:
            allowed = preflight(server, FRIEND)
            assert allowed.status_code == 204
            assert allowed.headers["Access-Control-Allow-Origin"] == FRIEND
            assert "POST" in allowed.headers["Access-Control-Allow-Methods"].split(", ")
            headers = allowed.headers["Access-Control-Allow-Headers"].lower().split(", ")
            assert {"authorization", "content-type"} <= set(headers)
            sent = {"Origin": FRIEND, **({"Authorization": f"Bearer {token}"} if token else {})}
            for content, status in ((make_image(), 200), (b"no image", 422)):
                answer = server.client.post("/predict", content=content, headers=sent)
                assert answer.status_code == status
                assert answer.headers["Access-Control-Allow-Origin"] == FRIEND
                assert answer.headers["Vary"] == "Origin"
            if token:
                refused = server.client.post("/predict", content=make_image(), headers={"Origin": FRIEND})
                assert (refused.status_code, refused.headers["Access-Control-Allow-Origin"]) == (401, FRIEND)
            for stranger in ("https://evil.example", f"{FRIEND}.evil.example", "null"):
                refused = preflight(server, stranger)
                assert refused.status_code in (401, 403)
                assert "Access-Control-Allow-Origin" not in refused.headers
                assert list(refused.json()) == ["error"]


def test_a_token_opens(closed):
    right = {"Authorization": f"Bearer {TOKEN}", "Host": "example.com"}
    assert closed.client.post("/predict", content=make_image(), headers=right).status_code == 200
    assert closed.client.get("/metrics", headers=right).status_code == 200


WRONG_TOKENS = (None, "", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", "Bearer \xff")
CLOSED = ("POST /predict", "POST /", "GET /metrics", "GET /v2", "GET /v2/models/gated")
OPEN = ("/", "/health", "/v2/health/live", "/v2/health/ready", "/docs", "/page/static/docs.css", "/openapi.json")


def test_without_the_token_nothing_is_told(closed, subtests):
    for given in WRONG_TOKENS:
        headers = {} if given is None else {"Authorization": given.encode("latin-1")}
        with subtests.test(given):
            for asked in CLOSED:
                refused = closed.client.request(*asked.split(), headers=headers)
                assert refused.status_code == 401
                assert refused.headers["WWW-Authenticate"] == "Bearer"
                assert "Authorization: Bearer" in refused.json()["error"]
            for path in OPEN:
                assert closed.client.get(path, headers=headers).status_code == 200


def test_every_answer_has_the_headers_that_keep_it_safe(server, subtests):
    for path in ("/", "/docs", "/page/static/docs.css", "/nothing", "/metrics", "/openapi.json"):
        with subtests.test(path):
            headers = server.client.get(path).headers
            policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
            assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == "'self'"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert "server" not in headers
            assert "access-control-allow-origin" not in headers


def test_what_is_not_there(server):
    for asked, status in (("GET /nothing", 404), ("GET /docs/", 404), ("GET /predict", 405), ("DELETE /", 405)):
        refused = server.client.request(*asked.split())
        assert refused.status_code == status, asked
        assert re.fullmatch(r"[^.]*\.", refused.json()["error"])


def test_the_documentation_needs_nothing_from_elsewhere(server):
    page = server.client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "POST /predict" in page.text
    assert "//" not in page.text.replace("<!doctype html>", "")
    assert "<script" not in page.text
    assert "style=" not in page.text
    for linked in re.findall(r'(?:href|src)="([^"]+)"', page.text):
        assert server.client.get(f"/{linked}").status_code == 200


def test_the_document_describes_every_route(server):
    paths = server.client.get("/openapi.json").json()["paths"]
    assert {"/predict", "/explain", "/embed", "/metrics", "/v2/models/{name}/infer", "/v2/health/live"} <= set(paths)
    body = paths["/predict"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/octet-stream", "application/json", "multipart/form-data"}


def test_head_is_get_without_the_body(server):
    """As load balancers ask."""
    for path in ("/v2/health/live", "/v2/health/ready", "/", "/docs", "/metrics"):
        answer = server.client.head(path)
        assert answer.status_code == 200
        assert int(answer.headers["content-length"]) > 0
        assert answer.content == b""


def test_metrics_count_what_happened(server):
    server.client.post("/predict", content=b"no image")
    server.client.get("/some/path/that/a/client/made/up")
    text = server.client.get("/metrics").text
    assert 'vitreous_requests_total{route="/predict",status="422"}' in text
    assert "made/up" not in text
    assert not re.search(r"(?m)^(# TYPE )?\w+_created\b", text)
    for name in ("request_seconds_bucket", "stage_seconds_bucket", "queue_images", "batch_images_bucket"):
        assert f"vitreous_{name}{{" in text
    assert "process_resident_memory_bytes" in text


class BrokenEngine(GatedEngine):
    """Fails once the server has begun."""

    def logits(self, images):
        if self.gate.is_set():
            return super().logits(images)
        raise RuntimeError("the machine is on fire")


def test_a_mistake_of_the_server_is_one_line_in_its_log(caplog):
    engine = BrokenEngine()
    with running(gated(engine)) as server:
        engine.gate.clear()
        failed = server.client.post("/predict", content=make_image())
        assert failed.status_code == 500
        assert "fire" not in failed.text
        assert list(failed.json()) == ["error"]
        engine.gate.set()
        assert server.client.post("/predict", content=make_image()).status_code == 200
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("POST /predict: RuntimeError: the machine is on fire (")
    assert re.search(rf"{re.escape(__file__)}:\d+, in logits\)$", said)  # where it was raised


class DamagedEngine(GatedEngine):
    """Answers with no numbers once the server has begun."""

    def logits(self, images):
        answers = super().logits(images)
        if not self.gate.is_set():
            check_numbers(answers * float("nan"), "scores", Path("/srv/secret/model"))
        return answers


def test_a_damaged_model_is_a_mistake_of_the_server(caplog):
    engine = DamagedEngine()
    with running(gated(engine)) as server:
        engine.gate = SimpleNamespace(is_set=lambda: False, wait=lambda _: True)
        for path in ("/predict", "/page/image"):
            failed = server.client.post(path, content=make_image())
            assert failed.status_code == 500
            assert "secret" not in failed.text
            assert "/srv/secret/model" in caplog.records[-1].getMessage()


def test_a_client_that_leaves_is_nothing_to_report(server, caplog):
    with server.connect() as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf")
    counted = 'vitreous_requests_total{route="/predict",status="499"} 1.0'
    wait_for(lambda: counted in server.client.get("/metrics").text, counted)
    assert not caplog.records
