"""The status of Ray Serve's applications, and the engines found in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.ray_serve import application, body

from forebay.clients.ray import Ports
from forebay.clients.ray.instance import (
    MAX_DETAIL_CHARS,
    ServeInstance,
    engine_urls,
    fleet_application,
    plain,
)
from forebay.errors import DeployError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def test_a_cluster_without_serve() -> None:
    found = ServeInstance.parse(
        {"controller_info": {}, "proxies": {}, "applications": {}, "target_capacity": None}
    )
    assert found == ServeInstance({}, {})


def test_common_settings_are_kept() -> None:
    found = ServeInstance.parse({**body(), "proxy_location": "HeadOnly", "target_capacity": 50.0})
    assert found.settings == {"proxy_location": "HeadOnly", "target_capacity": 50.0}


@given(JSON)
def test_parts_of_another_form_are_reported(found: Any) -> None:
    with pytest.raises(DeployError, match="unknown form"):
        ServeInstance.parse({"applications": {"a": found}})


@given(JSON)
def test_document_of_another_form_is_reported(found: Any) -> None:
    if isinstance(found, dict) and found.get("applications") == {}:
        return
    with pytest.raises(DeployError, match="unknown form"):
        ServeInstance.parse(found)


def test_only_running_replicas_are_called() -> None:
    states = ("RUNNING", "STARTING", "STOPPING", "PENDING_MIGRATION", "RECOVERING", "UPDATING")
    found = ServeInstance.parse(body(application("fleet", states=states)))
    fleet = fleet_application(found, "fleet", "http://head:8265")
    assert engine_urls(fleet) == tuple(f"http://127.0.0.2:{port}" for port in (20_100, 20_103, 20_105))
    assert [each.name for each in fleet.deployments["engine"].running()] == ["r0"]


def test_shared_address_is_called_once() -> None:
    made = application("fleet", states=("RUNNING", "RUNNING"))
    made["deployments"]["engine"]["replicas"][1]["pid"] += 10_000 - 1
    assert engine_urls(ServeInstance.parse(body(made)).applications["fleet"]) == ("http://127.0.0.2:20100",)


def test_deleting_application_has_no_engines() -> None:
    found = ServeInstance.parse(body(application("fleet", status="DELETING", states=("STOPPING",))))
    assert engine_urls(fleet_application(found, "fleet", "http://head:8265")) == ()


def test_port_is_derived_from_process_and_config() -> None:
    made = application("fleet", states=("RUNNING",))
    made["deployed_app_config"]["args"].update(first_port=5000, ports=100)
    made["deployments"]["engine"]["replicas"][0].update(pid=31_207, node_ip="fd00::1")
    assert engine_urls(ServeInstance.parse(body(made)).applications["fleet"]) == ("http://[fd00::1]:5007",)


@given(st.integers(1, 1 << 22), st.integers(1024, 40_000), st.integers(100, 20_000))
def test_ports_are_within_their_range_and_differ_for_neighbours(pid: int, first: int, many: int) -> None:
    ports = Ports(first, many)
    assert first <= ports.of(pid) < first + many
    assert ports.of(pid) != ports.of(pid + 1)


@pytest.mark.parametrize(
    "arguments", [None, {}, {"first_port": "1", "ports": 10}, {"first_port": 1, "ports": 0}]
)
def test_foreign_config(arguments: Any) -> None:
    made = application("fleet", states=("RUNNING",))
    made["deployed_app_config"]["args"] = arguments
    with pytest.raises(DeployError, match="fleet has no ports of its engines"):
        engine_urls(ServeInstance.parse(body(made)).applications["fleet"])


def test_missing_application_or_not_a_fleet() -> None:
    instance = ServeInstance.parse(body(application("web", import_path="web:app")))
    with pytest.raises(DeployError, match="has no application fleet; there are: web"):
        fleet_application(instance, "fleet", "http://head:8265")
    with pytest.raises(DeployError, match="web is not a fleet of Forebay"):
        fleet_application(instance, "web", "http://head:8265")


def test_end_of_a_long_message_is_kept_without_controls() -> None:
    assert plain("a\n\x1b[31mb") == "a \ufffd[31mb"
    assert plain("x" * 10_000 + " the error").endswith("the error")
    assert len(plain("x" * 10_000)) == MAX_DETAIL_CHARS + 1
