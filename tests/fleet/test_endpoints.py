from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.kubernetes.plane import ControlPlane
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock
from yarl import URL

from forebay.clock import Clock
from forebay.deploy.kubernetes.pods import ENDPOINTS as RULE
from forebay.engine import Deadline
from forebay.engine.replica import HttpReplica, ServedModel
from forebay.engine.retry import RetryPolicy
from forebay.errors import PipelineFailed, SettingError, Unreachable
from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import MAX_REPLICAS, discover_model
from forebay.fleet.endpoints import KubernetesReplicas, ServiceName, endpoint_urls
from forebay.fleet.engine import FleetEngine
from forebay.records import Request
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Fixed

HTTP = ({"name": "http", "port": 8000},)


def slice_of(*endpoints: Mapping[str, Any], family: str = "IPv4", ports: Any = HTTP) -> dict[str, Any]:
    return {"addressType": family, "ports": ports, "endpoints": endpoints}


def endpoint(address: str, pod: str = "", **conditions: Any) -> dict[str, Any]:
    target = {"targetRef": {"uid": pod}} if pod else {}
    return {"addresses": [address], "conditions": conditions, **target}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("engine", ServiceName("engine")),
        ("engine:http", ServiceName("engine", port="http")),
        ("models/engine:8000", ServiceName("engine", "models", "8000")),
    ],
)
def test_service_has_a_name_and_optional_namespace_and_port(text: str, name: ServiceName) -> None:
    assert ServiceName.parse(text) == name
    assert pickle.loads(pickle.dumps(KubernetesReplicas(text))) == KubernetesReplicas(text)


@pytest.mark.parametrize("text", ["", "/", "a/b/c", "A", "a:", "a:0", "a:65536", "http://a:8000", "a" * 64])
def test_other_address_form_is_rejected(text: str) -> None:
    with pytest.raises(SettingError, match=r"expected \[NAMESPACE/\]SERVICE\[:PORT\]"):
        KubernetesReplicas(text)


CONDITIONS = st.fixed_dictionaries(
    {}, optional={name: st.booleans() | st.none() for name in ("ready", "terminating", "serving")}
)
ENDPOINTS = st.builds(
    lambda number, conditions: endpoint(f"10.0.0.{number}", f"pod-{number}", **conditions),
    st.integers(1, 9),
    CONDITIONS,
)


@given(st.lists(st.lists(ENDPOINTS)))
def test_ready_endpoints_that_are_not_terminating_are_replicas(slices: list[list[dict[str, Any]]]) -> None:
    found = endpoint_urls([slice_of(*each) for each in slices], "http", where="here")
    every = [each for one in slices for each in one]
    for number in range(1, 10):
        mine = [each["conditions"] for each in every if each["targetRef"]["uid"] == f"pod-{number}"]
        ready = any(each.get("ready") is not False and not each.get("terminating") for each in mine)
        stops = any(each.get("terminating") for each in mine)
        assert (f"http://10.0.0.{number}:8000" in found) == (ready and not stops)
    assert list(found) == sorted(set(found))


def test_dual_stack_pod_is_one_replica() -> None:
    six = slice_of(endpoint("fd00::1", "a", ready=True), endpoint("fd00::2", "b"), family="IPv6")
    four = slice_of(endpoint("10.0.0.1", "a", ready=True))
    expected = ("http://10.0.0.1:8000", "http://[fd00::2]:8000")
    assert endpoint_urls([six, four], None, where="x") == expected
    assert endpoint_urls([four, six], None, where="x") == expected


def test_port_is_chosen_by_name_or_number() -> None:
    two = slice_of(endpoint("10.0.0.1"), ports=(*HTTP, {"name": "metrics", "port": 9000}))
    assert endpoint_urls([two], "metrics", where="x") == ("http://10.0.0.1:9000",)
    assert endpoint_urls([two], "8080", where="x") == ("http://10.0.0.1:8080",)
    with pytest.raises(SettingError, match=r"x: expected .* with a port, which is one of http, metrics"):
        endpoint_urls([two], None, where="x")
    with pytest.raises(SettingError, match="x: there is no port grpc; its ports are http, metrics"):
        endpoint_urls([two], "grpc", where="x")


@pytest.mark.parametrize(
    "wrong", [{}, {"addressType": "IPv4", "endpoints": [{}]}, {"addressType": "IPv4", "endpoints": [1]}]
)
def test_invalid_endpoint_slice_is_one_error(wrong: Any) -> None:
    with pytest.raises(SettingError, match="x: an EndpointSlice of an unknown form"):
        endpoint_urls([wrong], None, where="x")


def test_number_of_replicas_is_bounded() -> None:
    many = [endpoint(f"10.{at // 65536}.{at // 256 % 256}.{at % 256}") for at in range(MAX_REPLICAS + 1)]
    with pytest.raises(SettingError, match="x: more than 1000 replicas"):
        endpoint_urls([slice_of(*many)], None, where="x")


class Service:
    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.namespace = f"n-{uuid.uuid4().hex[:8]}"
        self.name = f"{self.namespace}/engine:http"
        plane.kubectl("create", "namespace", self.namespace)

    def set(self, endpoints: Mapping[str, Mapping[str, Any]], ports: Mapping[str, int] | None = None) -> None:
        """The endpoints by address; each has a slice of its own, as `ports` may give each its own port."""
        items = [
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": f"engine-{address.replace('.', '-')}",
                    "namespace": self.namespace,
                    "labels": {"kubernetes.io/service-name": "engine"},
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": [address], "conditions": dict(conditions)}] if conditions else [],
                "ports": [{"name": "http", "port": (ports or {}).get(address, 8000)}],
            }
            for address, conditions in endpoints.items()
        ]
        file = self.plane.kubeconfig.parent / f"{self.namespace}.json"
        file.write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        self.plane.kubectl("apply", "-f", str(file))


READY: Mapping[str, Any] = {"ready": True, "terminating": False}
STOPS: Mapping[str, Any] = {"ready": False, "serving": True, "terminating": True}


@pytest.fixture
def service(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    return Service(control_plane)


@asynccontextmanager
async def fleet_on(
    service: Service, replicas: list[FakeReplica], clock: Clock | None = None
) -> AsyncIterator[FleetEngine]:
    """A fleet of the Service's endpoints. An address there cannot be that of this machine's loopback: the
    replica with the same port is called."""

    def connect(url: str) -> HttpReplica:
        return HttpReplica(str(URL(url).with_host("127.0.0.1")), clock=clock)

    config = FleetConfig(KubernetesReplicas(service.name), model="m", check_s=0.05)
    engine = FleetEngine(config, clock=clock, connect=connect)
    for replica in replicas:
        await replica.start()
    try:
        yield engine
    finally:
        await engine.close()
        for replica in replicas:
            await replica.stop()


def port_of(replica: FakeReplica) -> int:
    return URL(replica.url).port or 0


def calls(replica: FakeReplica) -> int:
    return sum(replica.report().calls.values())


async def in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)


async def test_requests_follow_the_service_as_pods_start_and_stop(
    service: Service, ask: Callable[..., Request], wait_for: Callable[..., Awaitable[None]]
) -> None:
    script = ReplicaScript(models=("m",), delay=Fixed(0.02))
    one, two = replicas = [FakeReplica(script), FakeReplica(script)]
    clock = ManualClock()
    async with fleet_on(service, replicas, clock) as engine:
        ports = {"10.9.0.1": port_of(one), "10.9.0.2": port_of(two)}
        await in_thread(service.set, {"10.9.0.1": {}, "10.9.0.2": {}}, ports)
        with pytest.raises(Unreachable):
            await engine.client.start(0.0)
        await wait_for(lambda: engine.client.probed)
        # There is a Service, and no replica yet: what waits is not late.
        first = asyncio.create_task(engine.complete(ask(0), timeout_s=60, deadline=Deadline(9.0)))
        await wait_for(lambda: engine.client.waiting == 1)
        clock.advance(1000.0)
        await in_thread(service.set, {"10.9.0.1": READY, "10.9.0.2": {}}, ports)
        await first
        assert (calls(one), calls(two)) == (1, 0)
        await in_thread(service.set, {"10.9.0.1": STOPS, "10.9.0.2": READY}, ports)
        await wait_for(lambda: list(engine.client.replicas()) == ["http://10.9.0.2:" + str(port_of(two))])
        for number in range(1, 6):
            await engine.complete(ask(number), timeout_s=60)
        assert (calls(one), calls(two)) == (1, 5)


async def test_last_list_is_kept_while_the_api_server_is_away(
    service: Service, ask: Callable[..., Request], wait_for: Callable[..., Awaitable[None]]
) -> None:
    script = ReplicaScript(models=("m",), delay=Fixed(0.02))
    one, two = replicas = [FakeReplica(script), FakeReplica(script)]
    async with fleet_on(service, replicas) as engine:
        ports = {"10.9.0.1": port_of(one), "10.9.0.2": port_of(two)}
        await in_thread(service.set, {"10.9.0.1": READY}, ports)
        await engine.complete(ask(0), timeout_s=60)
        await in_thread(service.plane.run, "kill", "kube-apiserver")
        try:
            await wait_for(lambda: "does not answer" in engine.client.fault)
            await engine.complete(ask(1), timeout_s=60)
        finally:
            await in_thread(service.plane.run, "start", "kube-apiserver")
        await wait_for(lambda: not engine.client.fault)
        await in_thread(service.set, {"10.9.0.1": STOPS, "10.9.0.2": READY}, ports)
        await wait_for(lambda: calls(two) > 0 or len(engine.client.replicas()) == 1)
        await engine.complete(ask(2), timeout_s=60)
        assert (calls(one), calls(two)) == (2, 1)


async def test_missing_service_and_missing_rights_are_named(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingError, match=r"is there such a Service .*get service engine"):
        await KubernetesReplicas(service.name).urls()
    plane, namespace = service.plane, service.namespace
    await in_thread(plane.kubectl, "-n", namespace, "create", "serviceaccount", "nobody")
    token = await in_thread(plane.kubectl, "-n", namespace, "create", "token", "nobody")
    config = orjson.loads(plane.kubeconfig.read_bytes())
    config["users"][0]["user"] = {"token": token.strip()}
    (tmp_path / "kubeconfig").write_bytes(orjson.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with pytest.raises(
        SettingError, match=r"the verb list on the resource endpointslices of discovery\.k8s\.io"
    ):
        await KubernetesReplicas(service.name).urls()
    # What the manifests give is enough.
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "router", "namespace": namespace},
        "rules": [RULE],
    }
    (tmp_path / "role.json").write_bytes(orjson.dumps(role))
    await in_thread(plane.kubectl, "create", "-f", str(tmp_path / "role.json"))
    binding = ("create", "rolebinding", "router", "--role=router", f"--serviceaccount={namespace}:nobody")
    await in_thread(plane.kubectl, "-n", namespace, *binding)
    await in_thread(service.set, {"10.9.0.1": READY, "10.9.0.2": STOPS})
    updates = KubernetesReplicas(service.name).updates()
    assert await anext_of(updates) == ("http://10.9.0.1:8000",)
    await in_thread(service.set, {"10.9.0.2": READY})
    assert await anext_of(updates) == ("http://10.9.0.1:8000", "http://10.9.0.2:8000")
    await updates.aclose()


async def anext_of(updates: Any) -> Any:
    """The next answer that is not an error: a new right takes a while to apply."""
    async for found in updates:
        if isinstance(found, tuple):
            return found
    raise AssertionError("it has ended")


async def test_missing_cluster_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightkube", reason="lightkube is missing: pip install 'forebay[kubernetes]'")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SettingError, match="kubernetes: no cluster"):
        await KubernetesReplicas("engine").urls()


class NoReplica:
    async def urls(self) -> tuple[str, ...]:
        return ()

    def updates(self) -> Any:
        raise NotImplementedError


def test_named_model_is_trusted_until_a_replica_is_up() -> None:
    keys = ("engine.url", "engine.model")
    text: list[str] = []
    found = discover_model(NoReplica(), "m", api_key=None, retry=RetryPolicy(), deadline_s=1.0, keys=keys)
    assert found == ServedModel("m")
    clock = ManualClock()
    with pytest.raises(PipelineFailed, match="there is no replica at present"):
        discover_model(
            NoReplica(),
            None,
            api_key=None,
            retry=RetryPolicy(),
            deadline_s=1.0,
            keys=keys,
            note=lambda words, waited_s: text.append(words),
            clock=clock,
            sleep=clock.pause,
        )
    assert text
