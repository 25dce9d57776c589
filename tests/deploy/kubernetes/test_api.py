"""Manifests on a real control plane: valid ones are accepted, wrong fields are refused."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.kubernetes.plane import ControlPlane
from tests.harness.clock import ManualClock
from tests.harness.deployments import VARIANTS, variant

from forebay.deploy.kubernetes import Manifest, render
from forebay.deploy.kubernetes.api import (
    CHECKED,
    CONFIGURED,
    CREATED,
    PAUSES_S,
    KubeApi,
    apply_all,
    open_api,
    refused_pods,
    remove_all,
)
from forebay.errors import DeployError
from forebay.ports import free_port

FREE = frozenset(
    (
        "data",
        "labels",
        "annotations",
        "matchLabels",
        "flinkConfiguration",
        "selector",
        "metadata",
        "rayStartParams",
    )
)
"""Mappings in which the server accepts any key."""
MANIFESTS = {
    f"{name}: {each}": each for name in VARIANTS for each in render(variant(name)) if each.kind != "ConfigMap"
}


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """The test's own namespace, which accepts only restricted pods."""
    name = f"n-{uuid.uuid4().hex[:8]}"
    control_plane.kubectl("create", "namespace", name)
    control_plane.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    control_plane.kubectl("label", "namespace", name, "pod-security.kubernetes.io/warn=restricted")
    return name


@pytest.fixture
def api(control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    with open_api(namespace=namespace) as made:
        yield made


@pytest.mark.parametrize("name", VARIANTS)
def test_all_manifests_are_valid_applied_again_and_removed(name: str, api: KubeApi) -> None:
    manifests = render(variant(name))
    checked = list(apply_all(api, manifests, dry_run=True))
    assert {each.action for each in checked} == {CHECKED}
    assert [each.warnings for each in checked if each.warnings] == []
    assert list(remove_all(api, "triage")) == []
    assert {each.action for each in apply_all(api, manifests)} == {CREATED}
    assert {each.action for each in apply_all(api, manifests)} == {CONFIGURED}
    removed = {(each.kind, each.name) for each in remove_all(api, "triage")}
    assert removed == {(each.kind, each.name) for each in manifests}
    assert list(remove_all(api, "triage")) == []


@pytest.fixture(scope="module")
def shared_api(control_plane: ControlPlane) -> Iterator[KubeApi]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
        with open_api(namespace="default") as made:
            yield made


@pytest.mark.parametrize("name", MANIFESTS)
def test_misspelt_field_is_rejected(name: str, shared_api: KubeApi) -> None:
    manifest = MANIFESTS[name]
    shared_api.apply(manifest, dry_run=True)
    for path in (shallowest(manifest), deepest(manifest)):
        with pytest.raises(DeployError) as caught:
            shared_api.apply(misspelt(manifest, path), dry_run=True)
        assert manifest.kind in str(caught.value)
        assert f"{path[-1]}x" in str(caught.value)


Where = tuple[str | int, ...]


def fields(value: Any, where: Where = ()) -> Iterator[Where]:
    """The paths of all fields that the server defines by name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in FREE and key != "selector":
                continue
            yield (*where, key)
            if key != "selector":
                yield from fields(inner, (*where, key))
    elif isinstance(value, list | tuple):
        for at, inner in enumerate(value):
            yield from fields(inner, (*where, at))


def known(manifest: Manifest) -> list[Where]:
    found = [path for path in fields(manifest.body) if path[0] not in ("apiVersion", "kind")]
    # The name of an element of a list is its key, without which the server cannot even name what is wrong.
    return [
        path for path in found if path[-2:-1] not in (("limits",), ("requests",)) and path[-1] != "name"
    ] or [("metadata", "labels")]


def shallowest(manifest: Manifest) -> Where:
    return min(known(manifest), key=len)


def deepest(manifest: Manifest) -> Where:
    return max(known(manifest), key=len)


def misspelt(manifest: Manifest, path: Where) -> Manifest:
    body: Any = copy.deepcopy(dict(manifest.body))
    at = body
    for step in path[:-1]:
        at = at[step]
    at[f"{path[-1]}x"] = at.pop(path[-1])
    return replace(manifest, body=body)


def test_misspelt_config_map_is_rejected(shared_api: KubeApi) -> None:
    manifest = next(each for each in render(variant("smallest")) if each.kind == "ConfigMap")
    with pytest.raises(DeployError, match="datax"):
        shared_api.apply(misspelt(manifest, ("data",)), dry_run=True)


def test_nothing_is_applied_if_one_object_would_be_rejected(api: KubeApi) -> None:
    manifests = list(render(variant("smallest")))
    manifests[-1] = misspelt(manifests[-1], ("spec", "job", "entryClass"))
    with pytest.raises(DeployError, match=r"FlinkDeployment triage: .*entryClassx"):
        list(apply_all(api, manifests))
    assert list(remove_all(api, "triage")) == []


def test_pods_start_under_the_restricted_standard(
    api: KubeApi, control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.kubectl("apply", "--server-side", "-f", node(control_plane.kubeconfig.parent))
    manifests = [each for each in render(variant("smallest")) if each.part == "engine"]
    list(apply_all(api, manifests))
    assert list(refused_pods(api, manifests)) == []
    control_plane.kubectl(
        "-n", namespace, "wait", "--for=condition=Available", "deployment/triage-engine", "--timeout=60s"
    )


def node(folder: Path) -> str:
    capacity = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-0", "labels": {"kubernetes.io/hostname": "node-0"}},
        "status": {"capacity": capacity, "allocatable": capacity},
    }
    (folder / "node.json").write_bytes(orjson.dumps(body))
    return str(folder / "node.json")


def test_a_quota_that_refuses_pods_is_reported(
    api: KubeApi, control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.kubectl("-n", namespace, "create", "quota", "small", "--hard=requests.cpu=1")
    manifests = [each for each in render(variant("smallest")) if each.part == "engine"]
    list(apply_all(api, manifests))
    refused = dict(refused_pods(api, manifests))
    assert "exceeded quota: small" in refused["triage-engine"]


def test_only_pods_that_stay_refused_are_reported() -> None:
    httpx2 = pytest.importorskip("httpx2")
    looked = {"type": "Progressing", "status": "True"}
    refused = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    told: dict[str, list[dict[str, Any]]] = {
        "triage-engine-prefill": [{}, {"conditions": [looked]}, {"conditions": [looked, refused]}],
        "triage-engine-decode": [{"conditions": [looked]}, {"conditions": [looked], "updatedReplicas": 1}],
    }

    def answer(request: Any) -> Any:
        status = {"observedGeneration": 1, **told[request.url.path.rpartition("/")[2]].pop(0)}
        metadata = {"generation": 1}
        return httpx2.Response(200, json={"metadata": metadata, "spec": {"replicas": 1}, "status": status})

    http = httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://api.invalid")
    manifests = [each for each in render(variant("controller")) if each.part == "engine"]
    clock = ManualClock()
    with KubeApi(http, "n") as api:
        found = dict(refused_pods(api, manifests, clock=clock, sleep=clock.pause))
    assert found == {"triage-engine-prefill": "exceeded quota"}
    assert not any(told.values())


def test_a_quota_that_refuses_an_object_is_reported(
    api: KubeApi, control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.kubectl("-n", namespace, "create", "quota", "few", "--hard=count/deployments.apps=0")
    with pytest.raises(DeployError, match=r"Deployment triage-engine: a quota of the namespace refuses it"):
        list(apply_all(api, render(variant("smallest"))))


def test_rights_that_are_missing_are_named(
    api: KubeApi, control_plane: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control_plane.kubectl("-n", namespace, "create", "serviceaccount", "nobody")
    token = control_plane.kubectl("-n", namespace, "create", "token", "nobody").strip()
    config = orjson.loads(control_plane.kubeconfig.read_bytes())
    config["users"][0]["user"] = {"token": token}
    monkeypatch.setenv("KUBECONFIG", written(tmp_path, config))
    with (
        open_api(namespace=namespace) as other,
        pytest.raises(
            DeployError,
            match=r"the verb patch on the resource networkpolicies of networking\.k8s\.io in the namespace "
            rf"{namespace} is missing; .* --verb=patch --resource=networkpolicies\.networking\.k8s\.io",
        ),
    ):
        list(apply_all(other, render(variant("smallest"))))
    config["users"][0]["user"] = {"token": "wrong"}
    monkeypatch.setenv("KUBECONFIG", written(tmp_path, config))
    with open_api(namespace=namespace) as other, pytest.raises(DeployError, match="rejected your login"):
        list(apply_all(other, render(variant("smallest"))))


def written(folder: Path, config: Any) -> str:
    (folder / "kubeconfig").write_bytes(orjson.dumps(config))
    return str(folder / "kubeconfig")


def test_no_cluster_no_context_no_namespace_no_operator(
    api: KubeApi, control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = render(variant("smallest"))
    with pytest.raises(DeployError, match="Context 'other' not found"), open_api("other"):
        pass
    with (
        open_api(namespace="nowhere") as other,
        pytest.raises(DeployError, match="there is no namespace nowhere: kubectl create namespace nowhere"),
    ):
        list(apply_all(other, manifests))
    unknown = replace(manifests[0], body={**manifests[0].body, "kind": "PrometheusRule"})
    unknown = replace(unknown, body={**unknown.body, "apiVersion": "monitoring.coreos.com/v1"})
    with pytest.raises(DeployError, match="has no PrometheusRule; install the Prometheus operator first"):
        api.apply(unknown)
    config = orjson.loads(control_plane.kubeconfig.read_bytes())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_port()}"
    monkeypatch.setenv("KUBECONFIG", written(tmp_path, config))
    with open_api() as other, pytest.raises(DeployError, match=r"the API server https://.* does not answer"):
        list(apply_all(other, manifests))


def test_overloaded_server_is_retried() -> None:
    httpx2 = pytest.importorskip("httpx2")

    answers = [429, 503, 200]
    pauses: list[float] = []

    def answer(request: Any) -> Any:
        return httpx2.Response(answers.pop(0), json={"items": [], "message": "too many requests"})

    http = httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://api.invalid")
    with KubeApi(http, "n", pauses.append) as api:
        assert api.named("ConfigMap", "a=b") == ()
        assert pauses == list(PAUSES_S[:2])
        answers.extend([429] * (len(PAUSES_S) + 1))
        with pytest.raises(DeployError, match="ConfigMap: refused for now: too many requests; try again"):
            api.named("ConfigMap", "a=b")


def test_fields_of_other_managers_are_kept(api: KubeApi, control_plane: ControlPlane, namespace: str) -> None:
    manifests = render(variant("smallest"))
    list(apply_all(api, manifests))
    control_plane.kubectl(
        "-n", namespace, "set", "image", "deployment/triage-engine", "vllm=vllm/vllm-openai:other"
    )
    with pytest.raises(DeployError, match="--force-conflicts takes these fields over"):
        list(apply_all(api, manifests))
    list(apply_all(api, manifests, force=True))
    found = api.read("Deployment", "triage-engine")
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "vllm/vllm-openai:v0.32.0"


def test_the_autoscalers_number_of_replicas_is_kept(
    api: KubeApi, control_plane: ControlPlane, namespace: str
) -> None:
    manifests = render(variant("everything"))
    list(apply_all(api, manifests))
    control_plane.kubectl("-n", namespace, "scale", "deployment/triage-engine", "--replicas=3")
    list(apply_all(api, manifests))
    assert api.read("Deployment", "triage-engine")["spec"]["replicas"] == 3
