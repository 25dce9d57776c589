"""Apply, list and delete through the API server, with errors that suggest a fix.

Without lightkube: manifests are sent unchanged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import orjson

from forebay.clients.kubernetes.connection import (
    TIMEOUT_S,
    ApiRefusal,
    find_cluster,
    open_client,
    plain,
    refusal,
    unreachable,
)
from forebay.clock import Clock, SystemClock
from forebay.deploy.kubernetes.deployment import owned_by
from forebay.deploy.kubernetes.manifest import KINDS, Manifest
from forebay.errors import DeployError

if TYPE_CHECKING:
    import httpx2

MANAGER = "forebay"
PASSING = frozenset((429, 503))
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class Applied:
    created: bool
    warnings: tuple[str, ...] = ()


class KubeApi:
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
        params = {"fieldManager": MANAGER, "fieldValidation": "Strict", "force": str(force).lower()}
        if dry_run:
            params["dryRun"] = "All"
        answer = self._ask(
            "PATCH",
            f"{self._path(manifest.kind)}/{manifest.name}",
            str(manifest),
            params=params,
            headers={"content-type": "application/apply-patch+yaml"},
            content=orjson.dumps(manifest.body),
        )
        warnings = answer.headers.get_list("warning")
        return Applied(answer.status_code == 201, tuple(map(_warning, warnings)))

    def named(self, kind: str, selector: str) -> tuple[str, ...]:
        """None if the cluster lacks the kind."""
        params = {"labelSelector": selector}
        answer = self._ask("GET", self._path(kind), kind, params=params, missing_ok=True)
        if answer.status_code == 404:
            return ()
        return tuple(item["metadata"]["name"] for item in answer.json()["items"])

    def read(self, kind: str, name: str) -> dict[str, Any]:
        found = self._ask("GET", f"{self._path(kind)}/{name}", f"{kind} {name}").json()
        return dict(found)

    def delete(self, kind: str, name: str, *, dry_run: bool = False) -> None:
        params = {"propagationPolicy": "Background", **({"dryRun": "All"} if dry_run else {})}
        path = f"{self._path(kind)}/{name}"
        self._ask("DELETE", path, f"{kind} {name}", params=params, missing_ok=True)

    def _path(self, kind: str) -> str:
        api_version = KINDS[kind].api_version
        group = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        return f"{group}/namespaces/{self.namespace}/{KINDS[kind].plural}"

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
    config = find_cluster(context)
    with KubeApi(open_client(config), namespace or config.namespace) as api:
        yield api


def _warning(header: str) -> str:
    found = re.fullmatch(r'299 \S+ "(.*)"', header, re.DOTALL)
    return plain((found[1] if found else header).replace('\\"', '"'))


def _refused(found: ApiRefusal, what: str, namespace: str) -> str:
    if found.code == 404 and "namespaces" not in found.detail:
        return _unknown_kind(what)
    if found.code == 409:
        return f"{found.detail}; --force-conflicts takes these fields over"
    return found.text(namespace)


def _unknown_kind(what: str) -> str:
    kind = what.partition(" ")[0]
    return f"this cluster has no {kind}; install {KINDS[kind].comes_with} first"


CHECKED, CREATED, CONFIGURED, REMOVED = "valid", "created", "configured", "removed"
LOOK_S = 0.2
NOTICED_S = 10.0


@dataclass(frozen=True, slots=True)
class Done:
    kind: str
    name: str
    action: str
    warnings: tuple[str, ...] = ()


def apply_all(
    api: KubeApi, manifests: Sequence[Manifest], *, dry_run: bool = False, force: bool = False
) -> Iterator[Done]:
    """The server checks all first: if it rejects one, nothing changes. `dry_run` only checks. Raises
    `DeployError`."""
    checked = [(each, api.apply(each, dry_run=True, force=force)) for each in manifests]
    for each, found in checked:
        if dry_run:
            yield Done(each.kind, each.name, CHECKED, found.warnings)
        else:
            applied = api.apply(each, force=force)
            action = CREATED if applied.created else CONFIGURED
            yield Done(each.kind, each.name, action, applied.warnings)


def remove_all(api: KubeApi, instance: str, *, dry_run: bool = False) -> Iterator[Done]:
    """Delete all objects with the labels of `instance`, the job first. Stored state stays. Raises
    `DeployError`."""
    for kind in KINDS:
        for name in api.named(kind, owned_by(instance)):
            api.delete(kind, name, dry_run=dry_run)
            yield Done(kind, name, REMOVED)


def refused_pods(
    api: KubeApi,
    manifests: Sequence[Manifest],
    *,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[str, str]]:
    """Deployments whose pods are rejected, and why. Raises `DeployError`. Blocks for ten seconds at most."""
    time_ = clock or SystemClock()
    ends_s = time_.monotonic_s() + NOTICED_S
    for each in manifests:
        if each.kind != "Deployment":
            continue
        while True:
            found = api.read(each.kind, each.name)
            conditions = {one["type"]: one for one in found.get("status", {}).get("conditions", ())}
            failed = conditions.get("ReplicaFailure", {})
            if failed.get("status") == "True":
                yield each.name, str(failed.get("message", failed.get("reason", "")))
                break
            if _has_pods(found) or time_.monotonic_s() > ends_s:
                break
            sleep(LOOK_S)


def _has_pods(deployment: Mapping[str, Any]) -> bool:
    status, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return bool(seen and (wanted == 0 or status.get("updatedReplicas", 0) > 0))
