"""The measurement on Kubernetes: its observations, and the node whose pods are processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.kubernetes.burst import BurstReport
from benchmarks.kubernetes.container import Image, Probe, command_of, mapped, mounts, scripted_burst
from benchmarks.kubernetes.measure import MISSING, isolated, measure_kubernetes
from benchmarks.kubernetes.plane import MISSING as NO_PLANE
from benchmarks.kubernetes.plane import kubernetes_home
from benchmarks.kubernetes.restarts import RestartReport
from benchmarks.kubernetes.seen import ReplicaSeen, Seen, levels, summary

from forebay.deploy.kubernetes.deployment import IN_FLIGHT, PENDING, REPLICAS, WANTED
from forebay.errors import SettingError


def vllm(running: float, done: float) -> str:
    return f"vllm:num_requests_running {running}\nvllm:request_success_total {done}\n"


def pod(address: str, *, ready: bool = False, stopping: bool = False) -> dict[str, Any]:
    metadata = {"deletionTimestamp": "now"} if stopping else {}
    condition = {"type": "Ready", "status": str(ready)}
    return {"metadata": metadata, "status": {"podIP": address, "conditions": [condition]}}


def test_times_are_derived_from_observations() -> None:
    seen = Seen()
    seen.deployment({"spec": {"replicas": 1}}, 0.0)
    seen.pods({"a": pod("10.0.0.2", ready=True)}, 1.0)
    seen.pipeline(f"{WANTED} 1\n{REPLICAS} 1\n", 2.0)
    for now_s, wanted in ((3.0, 2), (3.5, 2)):
        seen.pipeline(f"{WANTED} {wanted}\n{IN_FLIGHT} 9\n{PENDING} 1\n{REPLICAS} 1\n", now_s)
    seen.replicas["a"].metrics(vllm(4, 0), 3.5)
    seen.deployment({"spec": {"replicas": 2}}, 4.0)
    seen.pods({"a": pod("10.0.0.2", ready=True), "b": pod("10.0.0.3")}, 5.0)
    line = seen.line(5.0)
    assert (line["waiting"], line["running"], line["ready"], line["starting"]) == (6, 4, 1, 1)
    seen.pods({"a": pod("10.0.0.2", ready=True), "b": pod("10.0.0.3", ready=True)}, 9.0)
    for now_s, routed in ((9.25, 1), (9.5, 2), (10.0, 2)):
        seen.pipeline(f"{WANTED} 2\n{REPLICAS} {routed}\n", now_s)
    seen.replicas["b"].metrics(vllm(1, 0), 10.25)
    seen.line(10.5)
    seen.deployment({"spec": {"replicas": 1}}, 20.0)
    seen.pods({"a": pod("10.0.0.2", ready=True), "b": pod("10.0.0.3", stopping=True)}, 20.0)
    assert seen.line(21.0)["draining"] == 1
    seen.pods({"a": pod("10.0.0.2", ready=True)}, 40.0)
    assert seen.scaled_up_s() == [1.0]
    assert seen.known_s() == [0.5]
    assert seen.routed_s() == [1.25]
    assert levels(seen.course) == [1, 2, 1]
    assert seen.replicas["b"].at_stop == 1
    assert [each.name for each in seen.here()] == ["a"]


def test_scale_seen_before_its_request_counts_as_immediate() -> None:
    seen = Seen()
    seen.deployment({"spec": {"replicas": 1}}, 0.0)
    seen.pipeline(f"{WANTED} 1\n", 1.0)
    seen.deployment({"spec": {"replicas": 2}}, 4.0)
    seen.pipeline(f"{WANTED} 2\n", 5.5)
    seen.deployment({"spec": {"replicas": 1}}, 20.0)
    seen.deployment({"spec": {"replicas": 2}}, 30.0)
    assert seen.scaled_up_s() == [0.0], "of the second nobody saw a wanted number"


def test_a_late_request_to_a_stopping_replica_counts_unless_in_flight() -> None:
    replica = ReplicaSeen("a")
    replica.metrics(vllm(2, 5), 9.9)
    replica.pod(pod("10.0.0.2", ready=True, stopping=True), 10.0)
    assert replica.at_stop == 2
    replica.metrics(vllm(3, 5), 10.2)
    replica.metrics(vllm(1, 7), 10.6)
    replica.metrics(vllm(0, 8), 12.0)
    assert replica.sent_late == 0
    replica.metrics(vllm(1, 8), 13.0)
    assert replica.sent_late == 1


def report(**changes: Any) -> BurstReport:
    return replace(
        BurstReport(
            events=3, answered=3, dead_letters=0, lost=0, doubled=0, cut_off=0, levels=[1, 2, 1],
            scaled_up_s=[2.0], known_s=[1.0], routed_s=[3.0], sent_late=0.0, at_stop=1.0, replicas=[],
            controller=[], course=[],
        ),
        **changes,
    )  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"lost": 1, "answered": 2}, {"doubled": 1}, {"cut_off": 1}, {"dead_letters": 1}, {"sent_late": 1.0},
        {"levels": [1, 2]}, {"levels": [1]}, {"scaled_up_s": []}, {"scaled_up_s": [5.1]}, {"known_s": []},
        {"known_s": [2.1]},
    ],
)  # fmt: skip
def test_burst_passes_only_if_all_parts_pass(changes: dict[str, Any]) -> None:
    assert report().passed
    assert not report(**changes).passed


def test_restarts_pass_only_with_conflicts_and_without_a_wrong_number() -> None:
    good = RestartReport(restarts=3, held=1, conflicts=1, expired=1, scaled_s=[0.1, 4.9])
    assert good.passed
    for changes in (
        {"wrong": ["3"]},
        {"strayed": 1},
        {"conflicts": 0},
        {"expired": 0},
        {"held": 0},
        {"scaled_s": [5.1]},
        {"scaled_s": []},
    ):
        assert not replace(good, **changes).passed  # type: ignore[arg-type]
    assert summary([3.0, 1.0, 2.0]) == {"median_s": 2.0, "most_s": 3.0}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.flink
@pytest.mark.kubernetes
@pytest.mark.timeout(900)
def test_a_burst_takes_a_deployment_of_scripted_replicas_up_and_down(tmp_path: Path) -> None:
    if isolated() is None:
        pytest.skip(MISSING)
    if kubernetes_home() is None:
        pytest.skip(NO_PLANE)
    found = measure_kubernetes(tmp_path, real=False, restarts=2)
    burst, restarts = found["burst"], found["restarts"]
    assert burst["answered"] == burst["events"]
    assert (burst["lost"], burst["doubled"], burst["dead_letters"], burst["cut_off"]) == (0, 0, 0, 0)
    # On a busy machine, the rest may need a second replica once more.
    assert burst["levels"][:2] == [1, 2]
    assert burst["levels"][-1] == 1
    assert burst["sent_late"] == 0
    assert burst["scaled_up_s"]
    assert burst["known_s"]
    assert burst["routed_s"]
    assert (restarts["wrong"], restarts["strayed"]) == ([], 0)
    # Until a watch has expired, and requests in flight have kept a replica.
    assert restarts["restarts"] >= 2
    assert restarts["expired"]
    assert restarts["held"]


def test_the_stream_is_steady_and_has_one_burst() -> None:
    options = replace(scripted_burst(), rate=2.0, burst=10, quiet_s=3.0, burst_s=1.0)
    whole = options.due_s(0.0, 10.0)
    assert len(whole) == 30
    assert whole == sorted(whole)
    assert [*options.due_s(0.0, 3.3), *options.due_s(3.3, 7.0), *options.due_s(7.0, 10.0)] == whole


CONTAINER = {
    "image": "x",
    "args": ["serve", "--dir=/data", "/database", "$(POD)", "$(NONE)"],
    "env": [
        {"name": "HOME", "value": "/data/home"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ],
    "ports": [{"name": "http", "containerPort": 8000}],
    "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5},
    "lifecycle": {"preStop": {"exec": {"command": ["python3", "/data/drain.py"]}}},
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}


def test_a_container_becomes_a_process() -> None:
    spec = {"containers": [CONTAINER]}
    mounted = mounts(spec, Path("/pods/a"))
    # A program of this machine, which is outside of the volumes.
    image = Image(entrypoint=("/data/program",), programs=Path("/programs"))
    command = command_of(spec, image, {"metadata.name": "a"}, {"PATH": "/bin"}, mounted)
    assert command.words == ("/data/program", "serve", "--dir=/pods/a/data", "/database", "a", "$(NONE)")
    assert command.environment == {"PATH": "/programs:/bin", "HOME": "/pods/a/data/home", "POD": "a"}
    assert command.before_stop == ("python3", "/pods/a/data/drain.py")
    assert Probe.parse(CONTAINER, "readinessProbe") == Probe(8000, "/health", 5, 3, 1)
    assert Probe.parse(CONTAINER, "startupProbe") is None
    assert mapped("file:///data", mounted) == "file:///data"
    secret = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    with pytest.raises(SettingError, match="KEY: this node has no"):
        command_of({"containers": [{**CONTAINER, "env": [secret]}]}, image, {}, {"PATH": ""}, {})
