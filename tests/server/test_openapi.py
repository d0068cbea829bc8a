"""The OpenAPI document: what schemathesis makes of it never breaks the server, and it needs nothing from elsewhere."""

import json
import os
import re
from collections import Counter
from contextlib import suppress
from itertools import product

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

from support.live_server import save_tiny_model
from support.serving import opened, running

HELD = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(opened(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"), "tiny")) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize(
    "examples", [4, pytest.param(int(os.environ.get("VITREOUS_FUZZ", "500")), marks=pytest.mark.exhaustive)]
)
def test_no_request_breaks_the_server(server, examples):
    """Requests by the document, and mutilated ones: answers are what it says, and never a fault of the server.

    examples: requests for each route and mode.
    """
    document = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    operations = [found.ok() for found in document.get_all_operations()]
    asked_before = counted(server)
    for operation, mode in product(operations, GenerationMode):

        @given(operation.as_strategy(generation_mode=mode))
        @settings(max_examples=examples, suppress_health_check=HealthCheck)
        def ask(case):
            case.call_and_validate(checks=HELD)

        with suppress(Unsatisfiable):  # what takes nothing cannot be asked wrongly
            ask()
    asked = counted(server) - asked_before
    for route in ("/predict", "/explain", "/embed", "/v2/models/{name}/infer"):
        assert asked[route] >= 2 * examples, asked


def references(value):
    """Every address that a document refers to."""
    if isinstance(value, dict):
        yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from references(one)


def test_whatever_the_document_refers_to_is_in_it(server):
    text = server.client.get("/openapi.json").text
    document = json.loads(text)
    found = set(references(document))
    assert "#/components/schemas/InputTensor" in found
    for reference in found:
        place = document
        for step in reference.removeprefix("#/").split("/"):
            assert step in place, reference
            place = place[step]
    assert "$defs" not in text
    # an inference request may have bytes after its JSON
    infer = document["paths"]["/v2/models/{name}/infer"]["post"]
    assert set(infer["requestBody"]["content"]) == {"application/json", "application/octet-stream"}
    assert {one["name"] for one in infer["parameters"]} == {"name", "Inference-Header-Content-Length"}
    assert "application/octet-stream" in infer["responses"]["200"]["content"]


def counted(server):
    """Requests by route, as the server counts them; none was answered with a fault of the server."""
    found = Counter[str]()
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for one in family.samples:
            if one.name == "vitreous_requests_total":
                assert not one.labels["status"].startswith("5"), one
                found[one.labels["route"]] += int(one.value)
    return found


def test_pages_need_nothing_from_elsewhere(server):
    """`test_guard` has the policy that forbids it."""
    for path in ("/", "/docs", "/page/static/docs.css", "/openapi.json"):
        answer = server.client.get(path)
        assert answer.status_code == 200
        addresses = r"""(?:src|href|url|import|action)\s*[=(]\s*["']?\s*(?:https?:)?//[^\s"')]*"""
        assert re.findall(addresses, answer.text) == []
