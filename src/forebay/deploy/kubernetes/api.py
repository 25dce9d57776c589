"""Apply, list and delete through the API server, with errors that suggest a fix.

Requests are made here, not by lightkube: manifests are sent as they are, and the server checks every field
(`fieldValidation=Strict`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import orjson

from forebay.clients.kubernetes.connection import TIMEOUT_S, find_cluster, open_client
from forebay.clients.kubernetes.refusal import Refusal, plain, refusal, unreachable
from forebay.deploy.kubernetes.manifest import Manifest
from forebay.errors import DeployError

if TYPE_CHECKING:
    import httpx2

MANAGER = "forebay"
"""Owner of the fields that are applied here."""
PASSING = frozenset((429, 503))
"""The server is busy or starting: retry after each of these pauses."""
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class Kind:
    """The API server's name of a kind, and what installs it."""

    plural: str
    comes_with: str = "a newer Kubernetes"


PROMETHEUS = "the Prometheus operator"
KINDS: dict[tuple[str, str], Kind] = {
    ("flink.apache.org/v1beta1", "FlinkDeployment"): Kind(
        "flinkdeployments", "the Flink Kubernetes operator"
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): Kind("scaledobjects", "KEDA"),
    ("autoscaling/v2", "HorizontalPodAutoscaler"): Kind("horizontalpodautoscalers"),
    ("monitoring.coreos.com/v1", "PodMonitor"): Kind("podmonitors", PROMETHEUS),
    ("monitoring.coreos.com/v1", "PrometheusRule"): Kind("prometheusrules", PROMETHEUS),
    ("inference.networking.k8s.io/v1", "InferencePool"): Kind(
        "inferencepools", "the Gateway API inference extension"
    ),
    ("ray.io/v1", "RayService"): Kind("rayservices", "KubeRay"),
    ("apps/v1", "Deployment"): Kind("deployments"),
    ("policy/v1", "PodDisruptionBudget"): Kind("poddisruptionbudgets"),
    ("v1", "Service"): Kind("services"),
    ("resource.k8s.io/v1", "ResourceClaimTemplate"): Kind(
        "resourceclaimtemplates", "Kubernetes 1.34, with dynamic resource allocation"
    ),
    ("v1", "ConfigMap"): Kind("configmaps"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): Kind("rolebindings"),
    ("rbac.authorization.k8s.io/v1", "Role"): Kind("roles"),
    ("v1", "ServiceAccount"): Kind("serviceaccounts"),
    ("networking.k8s.io/v1", "NetworkPolicy"): Kind("networkpolicies"),
}
"""All kinds that are ever applied, in order of removal."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of applying a manifest, with the server's warnings."""

    created: bool
    warnings: tuple[str, ...] = ()


class KubeApi:
    """The API server of a kubeconfig context; a context manager. Calls block and raise `DeployError`."""

    def __init__(
        self, http: httpx2.Client, namespace: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._http = http
        self._sleep = sleep
        self.namespace = namespace

    def __enter__(self) -> KubeApi:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def apply(self, manifest: Manifest, *, dry_run: bool = False, force: bool = False) -> Applied:
        """Server-side apply: fields that others set stay. `force` takes over fields of others."""
        params = {"fieldManager": MANAGER, "fieldValidation": "Strict", "force": str(force).lower()}
        if dry_run:
            params["dryRun"] = "All"
        answer = self._ask(
            "PATCH",
            f"{self._path(manifest.api_version, manifest.kind)}/{manifest.name}",
            str(manifest),
            params=params,
            headers={"content-type": "application/apply-patch+yaml"},
            content=orjson.dumps(manifest.body),
        )
        said = answer.headers.get_list("warning")
        return Applied(answer.status_code == 201, tuple(map(_warning, said)))

    def named(self, api_version: str, kind: str, selector: str) -> tuple[str, ...]:
        """Names of the objects with these labels; empty if the cluster lacks the kind."""
        params = {"labelSelector": selector}
        answer = self._ask("GET", self._path(api_version, kind), kind, params=params, missing_ok=True)
        if answer.status_code == 404:
            return ()
        return tuple(item["metadata"]["name"] for item in answer.json()["items"])

    def read(self, api_version: str, kind: str, name: str) -> dict[str, Any]:
        found = self._ask("GET", f"{self._path(api_version, kind)}/{name}", f"{kind} {name}").json()
        return dict(found)

    def delete(self, api_version: str, kind: str, name: str, *, dry_run: bool = False) -> None:
        """Delete an object and what it owns; it may be gone already."""
        params = {"propagationPolicy": "Background", **({"dryRun": "All"} if dry_run else {})}
        path = f"{self._path(api_version, kind)}/{name}"
        self._ask("DELETE", path, f"{kind} {name}", params=params, missing_ok=True)

    def _path(self, api_version: str, kind: str) -> str:
        group = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        return f"{group}/namespaces/{self.namespace}/{KINDS[api_version, kind].plural}"

    def _ask(
        self, method: str, path: str, what: str, *, missing_ok: bool = False, **arguments: Any
    ) -> httpx2.Response:
        import httpx2

        try:
            for pause_s in (*PAUSES_S, None):
                answer = self._http.request(method, path, timeout=TIMEOUT_S, **arguments)
                if answer.status_code not in PASSING or pause_s is None:
                    break
                self._sleep(pause_s)
        except httpx2.HTTPError as error:
            raise DeployError(unreachable(str(self._http.base_url), error)) from None
        if answer.is_success or (missing_ok and answer.status_code == 404):
            return answer
        found = refusal(answer.status_code, answer.reason_phrase, answer.content)
        raise DeployError(f"{what}: {_refused(found, what, self.namespace)}")


@contextmanager
def open_api(context: str | None = None, namespace: str | None = None) -> Iterator[KubeApi]:
    """The API server of `context`, by default the current one of KUBECONFIG, ~/.kube/config or this pod.

    `namespace` defaults to the context's. Raises `SetupError` without lightkube, `DeployError` without a
    cluster.
    """
    config = find_cluster(context)
    with KubeApi(open_client(config), namespace or config.namespace) as api:
        yield api


def _warning(header: str) -> str:
    found = re.fullmatch(r'299 \S+ "(.*)"', header, re.DOTALL)
    return plain((found[1] if found else header).replace('\\"', '"'))


def _refused(found: Refusal, what: str, namespace: str) -> str:
    if found.code == 404 and "namespaces" not in found.said:
        return _unknown_kind(what)
    if found.code == 409:
        return f"{found.said}; --force-conflicts takes these fields over"
    return found.text(namespace)


def _unknown_kind(what: str) -> str:
    kind = what.partition(" ")[0]
    comes_with = next(each.comes_with for (_, name), each in KINDS.items() if name == kind)
    return f"this cluster has no {kind}; install {comes_with} first"
