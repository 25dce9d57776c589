"""The worst answers of the API server: nothing is scaled, and the next round continues."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from tests.harness.clock import ManualClock

from forebay.deploy.controller.cluster import MAX_PAGES, ClusterCalls, PodAddresses, metrics_url
from forebay.deploy.controller.loop import TRIES, Controller, ControllerScaling
from forebay.deploy.kubernetes.deployment import WANTED
from forebay.fleet.autoscale.base import ScalingLimits

httpx2 = pytest.importorskip("httpx2", reason="lightkube is missing: pip install 'forebay[kubernetes]'")

POD = {"status": {"phase": "Running", "podIP": "10.0.0.1"}}


class Server:
    """An API server with one Deployment and a free Lease; `wrong`: its answer to a method instead."""

    def __init__(self) -> None:
        self.replicas = 1
        self.patches: list[Any] = []
        self.events: list[Any] = []
        self.wrong: dict[str, Any] = {}
        self.more = False
        """Whether there is always another page of pods."""

    def __call__(self, request: Any) -> Any:
        if "leases" in request.url.path:
            return httpx2.Response(200, json={"metadata": {"resourceVersion": "1"}, "spec": {}})
        wrong = self.wrong.get(request.method)
        if request.method == "PATCH":
            self.patches.append(orjson.loads(request.content))
        if isinstance(wrong, Exception):
            raise wrong
        if isinstance(wrong, int):
            return httpx2.Response(wrong, json={"message": f"said {wrong}"})
        if isinstance(wrong, bytes):
            return httpx2.Response(200, content=wrong)
        if request.method == "PATCH":
            self.replicas = self.patches[-1]["spec"]["replicas"]
        if request.method == "POST":
            self.events.append(orjson.loads(request.content))
        if request.url.path.endswith("/pods"):
            listed = {"metadata": {"continue": "x" if self.more else ""}}
            return httpx2.Response(200, json={**listed, "items": [POD, {"status": {"phase": "Pending"}}]})
        metadata = {"name": "engine", "uid": "u", "resourceVersion": str(len(self.patches))}
        return httpx2.Response(200, json={"metadata": metadata, "spec": {"replicas": self.replicas}})


def controller_of(server: Server, wanted: float = 3) -> Controller:
    http = httpx2.Client(transport=httpx2.MockTransport(server), base_url="http://api.invalid")
    scaling = ControllerScaling({"engine": 1}, "a=b", ScalingLimits(0, 9), settle_s=0.0)
    calls = ClusterCalls(http, "n")
    return Controller(
        scaling, calls, lambda urls: [f"{WANTED} {wanted}\n" for _ in urls], ManualClock(), "me"
    )


WRONG = [429, 500, 503, 403, 404, b"<html>", b"[]", b"{}", httpx2.ConnectError("refused")]


@pytest.mark.parametrize("method", ["GET", "PATCH", "POST"])
@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_any_answer_lets_the_next_round_continue(method: str, wrong: Any) -> None:
    server = Server()
    controller = controller_of(server)
    server.wrong[method] = wrong
    controller.round()
    if method == "GET":
        assert server.patches == []
    server.wrong.clear()
    controller.round()
    assert server.replicas == 3
    assert all(patch["spec"]["replicas"] == 3 for patch in server.patches)


def test_each_patch_has_the_version_and_conflicts_are_retried() -> None:
    server = Server()
    server.wrong["PATCH"] = 409
    controller_of(server).round()
    assert [patch["metadata"]["resourceVersion"] for patch in server.patches] == [
        str(at) for at in range(TRIES)
    ]
    assert server.replicas == 1


def test_problem_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    controller = controller_of(server)
    server.wrong["PATCH"] = 403
    for _ in range(3):
        controller.round()
    assert caplog.text.count("you may not: said 403") == 1


def test_an_event_names_the_deployment_and_the_reason() -> None:
    server = Server()
    controller_of(server).round()
    (event,) = server.events
    assert event["involvedObject"]["name"] == "engine"
    assert event["message"] == "1 -> 3 replicas: the pipeline needs 3"
    assert event["lastTimestamp"] == "2023-11-14T22:13:20Z"


def test_pods_on_several_pages_are_all_found_and_too_many_are_reported() -> None:
    def controller(pages: int) -> ClusterCalls:
        def answer(request: Any) -> Any:
            page = int(request.url.params.get("continue", "0"))
            pod = {"status": {"phase": "Running", "podIP": f"10.0.0.{page}"}}
            more = {"continue": str(page + 1)} if page + 1 < pages else {}
            return httpx2.Response(200, json={"metadata": more, "items": [pod]})

        return ClusterCalls(
            httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://api.invalid"), "n"
        )

    assert controller(3).pod_addresses("a=b") == PodAddresses(("10.0.0.0", "10.0.0.1", "10.0.0.2"))
    found = controller(9).pod_addresses("a=b")
    assert len(found.found) == MAX_PAGES
    assert found.problem == "there are more than 1000 pods with a=b; only 1000 are read"


def test_no_replica_is_removed_while_pods_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.replicas, server.more = 5, True
    controller_of(server).round()
    assert server.patches == []
    assert "no replica is removed: there are more than 1000 pods with a=b" in caplog.text


def test_ipv4_and_ipv6_addresses_become_urls() -> None:
    assert metrics_url("10.0.0.1", 9249) == "http://10.0.0.1:9249/metrics"
    assert metrics_url("fd00::1", 9249) == "http://[fd00::1]:9249/metrics"
