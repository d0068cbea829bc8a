"""The OpenAPI document: what schemathesis makes of it never breaks the server, and it needs nothing from elsewhere."""

import re
from collections import Counter
from contextlib import suppress

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from prometheus_client.parser import text_string_to_metric_families
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from support.live_server import save_tiny_model, serving

HELD = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 30
"""Requests for each route and kind."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("mode", GenerationMode)
def test_no_request_breaks_the_server(server, mode):
    """Requests by the document, and mutilated ones: answers are what it says, and never a fault of the server."""
    operations = [
        found.ok() for found in schemathesis.openapi.from_url(f"{server.url}/openapi.json").get_all_operations()
    ]
    assert {"/predict", "/explain", "/embed", "/v2/models/{name}/infer"} <= {one.path for one in operations}
    for operation in operations:

        @given(operation.as_strategy(generation_mode=mode))
        @settings(max_examples=EXAMPLES, suppress_health_check=HealthCheck)
        def ask(case):
            case.call_and_validate(checks=HELD)

        with suppress(Unsatisfiable):  # what takes nothing cannot be asked wrongly
            ask()
    asked = Counter[str]()
    for one in counted(server):
        assert not one.labels["status"].startswith("5"), one
        asked[one.labels["route"]] += one.value
    assert all(asked[route] >= EXAMPLES for route in ("/predict", "/explain", "/embed", "/v2/models/{name}/infer")), (
        asked
    )


def references(value):
    """Every address that a document refers to."""
    if isinstance(value, dict):
        yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from references(one)


def test_whatever_the_document_refers_to_is_in_it(server):
    document = httpx.get(f"{server.url}/openapi.json", timeout=60).json()
    found = set(references(document))
    assert "#/components/schemas/InputTensor" in found
    for reference in found:
        place = document
        for step in reference.removeprefix("#/").split("/"):
            assert step in place, reference
            place = place[step]
    assert "$defs" not in httpx.get(f"{server.url}/openapi.json", timeout=60).text


def test_the_document_tells_of_bytes_after_json(server):
    infer = httpx.get(f"{server.url}/openapi.json", timeout=60).json()["paths"]["/v2/models/{name}/infer"]["post"]
    assert set(infer["requestBody"]["content"]) == {"application/json", "application/octet-stream"}
    assert {one["name"] for one in infer["parameters"]} == {"name", "Inference-Header-Content-Length"}
    assert "application/octet-stream" in infer["responses"]["200"]["content"]


def counted(server):
    """Requests by route and status, as the server counts them."""
    families = text_string_to_metric_families(httpx.get(f"{server.url}/metrics", timeout=60).text)
    return [one for family in families for one in family.samples if one.name == "vitreous_requests_total"]


@pytest.mark.parametrize("path", ["/", "/docs", "/docs.css", "/openapi.json"])
def test_pages_need_nothing_from_elsewhere(server, path):
    answer = httpx.get(f"{server.url}{path}", timeout=60)
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    addresses = re.findall(r"""(?:src|href|url|import|action)\s*[=(]\s*["']?\s*(?:https?:)?//[^\s"')]*""", answer.text)
    assert addresses == []


def test_every_link_of_the_documentation_leads_somewhere(server):
    page = httpx.get(f"{server.url}/docs", timeout=60).text
    for link in re.findall(r'(?:href|src)="([^"]+)"', page):
        assert httpx.get(httpx.URL(f"{server.url}/docs").join(link), timeout=60).status_code == 200, link
