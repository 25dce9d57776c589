"""The controller on the real API server, with only the rights of its manifests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.kubernetes.plane import ControlPlane
from tests.harness.deployments import variant

from forebay.clients.kubernetes.connection import find_cluster, open_client
from forebay.clock import SystemClock
from forebay.deploy.controller.cluster import ClusterCalls, DeploymentChanged
from forebay.deploy.controller.decision import DeploymentState
from forebay.deploy.controller.loop import Controller, ControllerScaling
from forebay.deploy.kubernetes import render
from forebay.deploy.kubernetes.api import apply_all, open_api
from forebay.deploy.kubernetes.deployment import WANTED
from forebay.errors import DeployError
from forebay.fleet.autoscale.base import ScalingLimits
from forebay.gateway.peak_load import PEAK_LOAD
from forebay.testing import wait_until

PODS = "app.kubernetes.io/instance=triage,app.kubernetes.io/component=pipeline"
GATEWAY_PODS = "app.kubernetes.io/instance=triage,app.kubernetes.io/component=gateway"
SILENT = "http://10.9.9.8:9249/metrics"
PREFILL, DECODE = "triage-engine-prefill", "triage-engine-decode"
PARTS = {PREFILL: 1, DECODE: 2}
SPLIT = {0: (0, 0), 1: (1, 1), 2: (1, 2), 3: (1, 2), 4: (2, 3), 5: (2, 4), 6: (2, 4), 9: (2, 4)}
"""Replicas of the two by the pipeline's wanted number, with a maximum of six."""


class Cluster:
    """A namespace with the engine's Deployments, the controller's rights, and a pod of the pipeline, or of
    the gateway if there is no pipeline."""

    def __init__(
        self, plane: ControlPlane, folder: Path, patch: pytest.MonkeyPatch, name: str = "controller"
    ) -> None:
        self.plane = plane
        self.namespace = f"n-{uuid.uuid4().hex[:8]}"
        plane.kubectl("create", "namespace", self.namespace)
        patch.setenv("KUBECONFIG", str(plane.kubeconfig))
        deployment = variant(name)
        parts = [each for each in render(deployment) if each.part in ("engine", "autoscaler")]
        with open_api(namespace=self.namespace) as api:
            list(apply_all(api, parts))
        token = self.kubectl("create", "token", "triage-autoscaler").strip()
        config = orjson.loads(plane.kubeconfig.read_bytes())
        config["users"][0]["user"] = {"token": token}
        config["contexts"][0]["context"]["namespace"] = self.namespace
        (folder / "kubeconfig").write_bytes(orjson.dumps(config))
        patch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
        self.wanted: float | None = None
        self.http = open_client(find_cluster())
        self.calls = ClusterCalls(self.http, self.namespace)
        # Kubernetes makes the account of a new namespace's pods a moment later.
        self.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=60s")
        self.folder = folder
        self.pod("job", "10.9.9.9", PODS if deployment.job is not None else GATEWAY_PODS)

    def pod(self, name: str, address: str, labels: str = PODS) -> None:
        """Create a pod with these labels and this address."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": dict(each.split("=") for each in labels.split(","))},
            "spec": {"containers": [{"name": "flink", "image": "flink"}]},
        }
        (self.folder / "pod.json").write_bytes(orjson.dumps(pod))
        self.kubectl("create", "-f", str(self.folder / "pod.json"))
        # Like a kubelet.
        status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
        self.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", _text(status))

    def kubectl(self, *words: str) -> str:
        return self.plane.kubectl("-n", self.namespace, *words)

    def scrape(self, urls: Sequence[str]) -> list[str | DeployError]:
        assert {"http://10.9.9.9:9249/metrics"} <= set(urls) <= {"http://10.9.9.9:9249/metrics", SILENT}
        return [
            DeployError(f"{url}: cannot read metrics: connection refused")
            if self.wanted is None or url == SILENT
            else f'{WANTED}{{host="a"}} {self.wanted}\n'
            for url in urls
        ]

    def controller(self, settle_s: float = 0.0, identity: str = "one", **limits: Any) -> Controller:
        scaling = ControllerScaling(PARTS, PODS, ScalingLimits(**{"most": 6, **limits}), settle_s=settle_s)
        return Controller(scaling, self.calls, self.scrape, SystemClock(), identity)

    def replicas(self, name: str = DECODE) -> int:
        found = self.kubectl("get", "deployment", name, "-o", "jsonpath={.spec.replicas}")
        return int(found)

    def pools(self) -> tuple[int, int]:
        return self.replicas(PREFILL), self.replicas(DECODE)

    def scaled(self, controller: Controller, wanted: int) -> None:
        """Set the pipeline's wanted number, and make rounds until each pool has its part.

        A round may conflict with other writers, such as Kubernetes.
        """
        self.wanted = wanted

        def reached() -> bool:
            controller.round()
            return self.pools() == SPLIT[wanted]

        wait_until(reached)

    def events(self) -> list[dict[str, Any]]:
        """The controller's events in the order written; the server lists them by name."""
        found = orjson.loads(self.kubectl("get", "events", "-o", "json"))["items"]
        own = [each for each in found if each.get("source", {}).get("component") == "forebay-autoscale"]
        return sorted(own, key=lambda each: int(each["metadata"]["resourceVersion"]))


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


@pytest.fixture
def cluster(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    made = Cluster(control_plane, tmp_path, monkeypatch)
    with made.http:
        yield made


def test_it_gives_each_pool_its_share_with_a_reason_and_within_limits(cluster: Cluster) -> None:
    controller = cluster.controller()
    controller.round()
    assert cluster.pools() == (1, 1)
    cluster.scaled(controller, 3)
    cluster.scaled(controller, 9)
    cluster.scaled(controller, 0)
    messages = [each["message"] for each in cluster.events() if each["involvedObject"]["name"] == DECODE]
    first, second, third = messages
    assert first == "1 -> 2 replicas: the pipeline needs 3, 2 of them here (share 2 of 3)"
    assert second == (
        "2 -> 4 replicas: the pipeline needs 9, 6 of them here (share 2 of 3); 4 in place of 6: the limits"
    )
    assert third.startswith("4 -> 0 replicas")


def test_clients_of_the_gateway_alone_start_and_keep_replicas(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(control_plane, tmp_path, monkeypatch, "gateway alone, by a controller")
    requests = [0.0]

    def scrape(urls: Sequence[str]) -> list[str | DeployError]:
        assert list(urls) == ["http://10.9.9.9:9090/metrics"]
        return [f"{PEAK_LOAD} {requests[0]}\n"]

    name = "triage-engine"
    scaling = ControllerScaling({name: 1}, None, ScalingLimits(0, 6), 10, 0.0, GATEWAY_PODS)
    controller = Controller(scaling, cluster.calls, scrape, SystemClock(), "one")

    def scaled(to: int) -> None:
        def reached() -> bool:
            controller.round()
            return cluster.replicas(name) == to

        wait_until(reached)

    with cluster.http:
        for each, replicas in ((0.0, 0), (1.0, 1), (0.0, 0)):
            requests[0] = each
            scaled(replicas)
        events = [each["message"] for each in cluster.events()]
    assert events[-2:] == [
        "0 -> 1 replica: the gateway has 1 request: 1 in all",
        "1 -> 0 replicas: the gateway has 0 requests: 0 in all",
    ]


def test_no_replica_is_removed_while_a_pod_has_no_metrics(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    controller = cluster.controller()
    cluster.scaled(controller, 3)
    cluster.pod("silent", "10.9.9.8")
    cluster.wanted = 1.0
    for _ in range(3):
        controller.round()
    assert cluster.pools() == SPLIT[3]
    assert f"no replica is removed: {SILENT}: cannot read metrics" in caplog.text
    cluster.scaled(controller, 4)


def test_concurrent_change_is_read_before_the_next_write(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = cluster.controller()
    seen: list[int] = []
    scale = cluster.calls.scale

    def beside(state: DeploymentState, wanted: int) -> None:
        seen.append(state.replicas)
        if len(seen) < 3:
            cluster.kubectl("scale", f"deployment/{state.name}", f"--replicas={len(seen) + 3}")
        scale(state, wanted)

    monkeypatch.setattr(ClusterCalls, "scale", lambda _self, state, wanted: beside(state, wanted))
    cluster.scaled(controller, 4)
    assert seen[:3] == [1, 4, 5]


def test_only_the_lease_holder_of_two_controllers_scales(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = cluster.controller(identity="one"), cluster.controller(identity="two")
    cluster.scaled(one, 2)
    # As the active one, it would change the number: it does not wait for replicas to settle.
    cluster.wanted = 4.0
    two.round()
    assert cluster.replicas() == 2
    assert f"{DECODE}: another controller scales it: one" in caplog.text
    cluster.scaled(one, 4)
    one.release()
    cluster.scaled(two, 1)
    one.round()
    holder = ("get", "lease", f"{DECODE}-autoscale", "-o", "jsonpath={.spec.holderIdentity}")
    assert cluster.kubectl(*holder) == "two"


def test_a_patch_of_an_old_version_is_refused(cluster: Cluster) -> None:
    state = cluster.calls.deployment(DECODE)
    cluster.kubectl("scale", f"deployment/{DECODE}", "--replicas=2")
    with pytest.raises(DeploymentChanged):
        cluster.calls.scale(state, 4)
    assert cluster.replicas() == 2


def test_missing_rights_and_deployments_are_named_and_others_scaled(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.wanted = 4.0
    scaling = ControllerScaling({"nothing": 1, PREFILL: 1, DECODE: 2}, PODS, ScalingLimits())
    first = Controller(scaling, cluster.calls, cluster.scrape, SystemClock(), "one")

    def others_scaled() -> bool:
        first.round()
        return cluster.pools() == (1, 2)

    wait_until(others_scaled)
    assert "the verb get on the resource leases of coordination.k8s.io" in caplog.text
    with pytest.raises(DeployError, match=r"the verb get on the resource deployments of apps"):
        cluster.calls.deployment("nothing")
    cluster.kubectl("delete", "deployment", DECODE)
    caplog.clear()
    cluster.controller().round()
    assert f"Deployment {DECODE}: not found in the namespace {cluster.namespace}" in caplog.text
    cluster.kubectl("delete", "rolebinding", "triage-autoscaler")
    wait_until(lambda: _refused(cluster))
    caplog.clear()
    cluster.controller().round()
    assert "the verb list on the resource pods in the namespace" in caplog.text


def _refused(cluster: Cluster) -> bool:
    try:
        cluster.calls.pod_addresses(PODS)
    except DeployError:
        return True
    return False


def test_a_quota_that_refuses_pods_is_reported_and_no_more_are_asked_for(cluster: Cluster) -> None:
    cluster.kubectl("create", "quota", "none", "--hard=pods=1")
    controller = cluster.controller()
    cluster.scaled(controller, 2)
    wait_until(lambda: "quota" in cluster.calls.deployment(DECODE).trouble)
    cluster.wanted = 6.0
    controller.round()
    controller.round()
    assert cluster.replicas() == 2
    told = [each for each in cluster.events() if each["reason"] == "ReplicasMissing"]
    assert {each["type"] for each in told} == {"Warning"}
    assert sum(each["involvedObject"]["name"] == DECODE for each in told) == 1


def test_a_replica_that_does_not_get_ready_is_reported_and_none_is_added(cluster: Cluster) -> None:
    nowhere = {"spec": {"nodeSelector": {"nowhere": "true"}}}
    patch = {"spec": {"progressDeadlineSeconds": 1, "template": nowhere}}
    cluster.kubectl("patch", f"deployment/{DECODE}", "--type=merge", "-p", _text(patch))

    def stuck() -> bool:
        """Whether it failed for good: the new pod, once created, counts as progress for a second."""
        found = orjson.loads(cluster.kubectl("get", "deployment", DECODE, "-o", "json"))
        made = found.get("status", {}).get("updatedReplicas") == 1
        return made and "does not become ready" in DeploymentState.parse(found).trouble

    wait_until(stuck)
    controller = cluster.controller()
    cluster.wanted = 4.0

    def others_scaled() -> bool:
        controller.round()
        return cluster.replicas(PREFILL) == 2

    wait_until(others_scaled)
    controller.round()
    assert cluster.replicas(DECODE) == 1
    (told,) = (each for each in cluster.events() if each["reason"] == "ReplicasMissing")
    assert told["involvedObject"]["name"] == DECODE
    assert told["message"].startswith("a replica does not become ready: ReplicaSet")


WANTED_FOR = {1: 1.0, 2: 3.0, 3: 4.0, 4: 6.0}
"""The pipeline's wanted number, by the resulting decode replicas."""


def drill(cluster: Cluster, rounds: int) -> list[float]:
    """Restart the API server repeatedly, with rounds during outages, other writers, and metrics that stop.

    Returns how long each change took, from the signal to the patched scale, without outages.
    """
    controller, clock, took_s, before = cluster.controller(), SystemClock(), [], 1
    for at in range(rounds):
        cluster.plane.run("kill", "kube-apiserver")
        cluster.wanted = None if at % 3 == 0 else WANTED_FOR[1 + (at + 1) % 4]
        controller.round()
        cluster.plane.run("start", "kube-apiserver")
        wait_until(lambda: _answers(cluster))
        assert cluster.replicas() == before
        expected = 1 + at % 4
        cluster.wanted = WANTED_FOR[expected]
        cluster.kubectl("annotate", "--overwrite", f"deployment/{DECODE}", f"other={at}")
        began_s = clock.monotonic_s()

        def scaled(before: int = before, wanted: int = expected) -> bool:
            controller.round()
            # In between, only the last number and this one may be seen.
            found = cluster.replicas()
            assert found in (before, wanted), (found, before, wanted)
            return found == wanted

        wait_until(scaled)
        took_s.append(clock.monotonic_s() - began_s)
        before = expected
    return took_s


def _answers(cluster: Cluster) -> bool:
    try:
        return cluster.calls.deployment(DECODE).replicas >= 0
    except DeployError:
        return False


@pytest.mark.long
@pytest.mark.slow
def test_restarts_of_the_api_server_never_lead_to_a_wrong_number(cluster: Cluster) -> None:
    assert len(drill(cluster, 3)) == 3
