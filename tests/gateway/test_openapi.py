"""The served description is true of the gateway, whatever is sent (schemathesis, over real sockets)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core import NOT_SET
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from forebay.gateway.openapi import DOCUMENT
from forebay.testing.replica import ReplicaScript
from forebay.testing.script import Fixed

from ..attacks.bounds import without_standstill_on_thread  # noqa: TID252
from .conftest import on_thread

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    missing_required_header,
    unsupported_method,
]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "key").write_text("sk-right")
    keys = [{"name": "a", "key": {"file": str(folder / "key")}}]
    with on_thread(ReplicaScript(delay=Fixed(0.0)), keys=keys) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


LONGEST_S = 300.0
"""A hang is found after 5 s; this is for one that nothing else has found."""
CALLS = [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods]


@pytest.mark.heavy
@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize(("path", "method"), CALLS)
@settings(max_examples=min(25, settings.default.max_examples // 2), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_gateway_follows_its_openapi_description(
    described: Any, path: str, method: str, mode: GenerationMode, data: st.DataObject
) -> None:
    operation = described[path][method]
    if mode.is_negative and not operation.definition.raw.get("requestBody"):
        return
    case = data.draw(operation.as_strategy(generation_mode=mode))
    if mode.is_positive and isinstance(case.body, dict):
        # Else hardly a request would get past the model's name.
        case.body["model"] = "fake"
    headers = {"Authorization": "Bearer sk-right"}
    response = without_standstill_on_thread(lambda: case.call(headers=headers, timeout=LONGEST_S))
    case.validate_response(response, checks=CHECKS, headers=headers)


@pytest.mark.parametrize(("path", "method"), CALLS)
def test_openapi_without_a_key_lists_open_routes_only(described: Any, path: str, method: str) -> None:
    is_open = DOCUMENT["paths"][path][method]["security"] == []
    body = {} if method == "post" else NOT_SET
    response = described[path][method].Case(body=body, path_parameters={"model": "fake"}).call()
    assert response.status_code == (200 if is_open else 401)
