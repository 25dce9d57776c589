"""Two pools of a deployment, on the real API server: job and gateway find both by what was rendered, with the
rights that they have there, and a prompt of the job is prefilled in one and decoded in the other."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest
from benchmarks.kubernetes.plane import ControlPlane
from tests.harness.deployments import variant
from yarl import URL

from forebay.deploy.kubernetes import render
from forebay.deploy.kubernetes.api import apply_all, open_api
from forebay.engine.replica import HttpReplica
from forebay.fleet.client import FleetClient
from forebay.fleet.disaggregated import DisaggregatedEngine, DisaggregatedEngineFactory
from forebay.fleet.engine import FleetEngine
from forebay.gateway.spec import load_gateway
from forebay.pipeline.inference import call_of
from forebay.pipeline.load import parse_spec
from forebay.records import Message, Request, Sampling
from forebay.testing import wait_until
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Fixed
from forebay.yaml_document import parse_yaml

SCRIPT = ReplicaScript(models=("smollm2",), delay=Fixed(0.0), block_chars=16, cache_blocks=1000)
PREFILL, DECODE = "triage-engine-prefill", "triage-engine-decode"
REQUESTS = 10


class Cluster:
    """A namespace with the Services and the rights of a deployment; the test sets which pod is ready."""

    def __init__(
        self, plane: ControlPlane, folder: Path, patch: pytest.MonkeyPatch, account: str = "triage"
    ) -> None:
        self._plane = plane
        self._folder = folder
        self._namespace = f"n-{uuid.uuid4().hex[:8]}"
        plane.kubectl("create", "namespace", self._namespace)
        patch.setenv("KUBECONFIG", str(plane.kubeconfig))
        manifests = render(variant("prefill and decode"))
        kinds = ("Service", "ServiceAccount", "Role", "RoleBinding")
        with open_api(namespace=self._namespace) as api:
            list(apply_all(api, [each for each in manifests if each.kind in kinds]))
        config = orjson.loads(plane.kubeconfig.read_bytes())
        config["users"][0]["user"] = {"token": self._kubectl("create", "token", account).strip()}
        config["contexts"][0]["context"]["namespace"] = self._namespace
        (folder / "kubeconfig").write_bytes(orjson.dumps(config))
        patch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
        files = {each.name: each.body for each in manifests if each.kind == "ConfigMap"}
        self.job = str(files["triage"]["data"]["pipeline.yaml"])
        self.gateway = str(files["triage-gateway"]["data"]["gateway.yaml"])

    def ready(self, service: str, replica: FakeReplica, *, ready: bool = True) -> None:
        """Whether `replica` is a ready pod behind the Service, on its own machine."""
        port = URL(replica.url).port or 0
        address = f"10.9.{port // 256}.{port % 256}"
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{service}-{port}", "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}],
            "ports": [{"name": "http", "port": port}],
        }
        (self._folder / "slice.json").write_bytes(orjson.dumps(body))
        self._kubectl("apply", "-f", str(self._folder / "slice.json"))

    def _kubectl(self, *words: str) -> str:
        return self._plane.kubectl("-n", self._namespace, *words)


def opened(job: str) -> tuple[DisaggregatedEngine, FleetEngine, FleetEngine]:
    """What the job with this pipeline file opens: both, the prefill fleet, and the decode fleet.

    A pod's address cannot be this machine's loopback: the replica with the same port is called.
    """
    spec = parse_spec(parse_yaml(job, "the job's")[0])
    replicas, model = spec.engine.replicas(), spec.engine.model
    assert replicas is not None
    assert model is not None
    factory = call_of(spec, replicas=replicas, model=model).engine
    assert isinstance(factory, DisaggregatedEngineFactory)

    prefill, decode = (
        FleetEngine(config, connect=connect(config.stream)) for config in (factory.prefill, factory.decode)
    )
    return DisaggregatedEngine(prefill, decode), prefill, decode


def connect(stream: bool) -> Callable[[str], HttpReplica]:
    return lambda url: HttpReplica(str(URL(url).with_host("127.0.0.1")), stream=stream)


def request(number: int) -> Request:
    text = "Which team should take this ticket? The roof leaks."
    return Request(f"event {number}", "smollm2", (Message("user", text),), sampling=Sampling(max_tokens=8))


def calls(replica: FakeReplica) -> int:
    return sum(replica.report().calls.values())


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


@pytest.fixture
def cluster(control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("ENGINE_KEY", "abc")
    return Cluster(control_plane, tmp_path, monkeypatch)


async def test_one_pool_prefills_and_the_other_decodes_while_pods_change(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        first, second, decodes = [await stack.enter_async_context(FakeReplica(SCRIPT)) for _ in range(3)]
        await asyncio.to_thread(cluster.ready, DECODE, decodes)
        await asyncio.to_thread(cluster.ready, PREFILL, first)
        engine, prefill, decode = opened(cluster.job)
        stack.push_async_callback(engine.close)
        engine.clients.watch()

        async def ask(numbers: range) -> None:
            await asyncio.gather(*(engine.complete(request(number), timeout_s=30) for number in numbers))

        await until(lambda: engine.clients.probed and engine.clients.usable == 2)
        await ask(range(REQUESTS))
        assert (calls(first), calls(second), calls(decodes)) == (REQUESTS, 0, REQUESTS)
        assert list(decodes.report().kv_reads.values()) == [1] * REQUESTS
        # The last pod that prefills stops: those that decode do both.
        await asyncio.to_thread(cluster.ready, PREFILL, first, ready=False)
        await until(lambda: not prefill.client.usable)
        await ask(range(REQUESTS, 2 * REQUESTS))
        assert (calls(first), calls(decodes)) == (REQUESTS, 2 * REQUESTS)
        # Another one comes.
        await asyncio.to_thread(cluster.ready, PREFILL, second)
        await until(lambda: prefill.client.usable == 1)
        await ask(range(2 * REQUESTS, 3 * REQUESTS))
        assert (calls(first), calls(second), calls(decodes)) == (REQUESTS, REQUESTS, 3 * REQUESTS)
        assert (decode.client.in_flight, list(engine.clients.sent)) == (0, [])


async def test_the_gateway_finds_both_pools_with_rights_of_its_own(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "abc")
    cluster = Cluster(control_plane, tmp_path, monkeypatch, "triage-gateway")
    (tmp_path / "gateway.yaml").write_text(cluster.gateway)
    spec = load_gateway(tmp_path / "gateway.yaml")
    pools = {DECODE: spec.fleet(), PREFILL: spec.prefill_fleet()}
    async with AsyncExitStack() as stack:
        for service, config in pools.items():
            assert config is not None
            replica = await stack.enter_async_context(FakeReplica(SCRIPT))
            await asyncio.to_thread(cluster.ready, service, replica)
            client = FleetClient(config, connect=connect(stream=True))
            stack.push_async_callback(client.close)
            client.watch()
            await until(lambda client=client: client.usable == 1)
            (url,) = client.replicas()
            assert URL(url).port == URL(replica.url).port
