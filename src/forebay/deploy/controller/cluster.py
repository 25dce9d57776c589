"""The controller's API calls. Each blocks for seconds at most and raises `DeployError`."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import orjson

from forebay.clients.kubernetes.connection import plain, refusal, unreachable
from forebay.clock import Clock
from forebay.deploy.controller.decision import DeploymentState
from forebay.errors import DeployError

if TYPE_CHECKING:
    import httpx2

MANAGER = "forebay-autoscale"
TIMEOUT_S = 3.0
PAGE = 250
MAX_PAGES = 4


class DeploymentChanged(DeployError): ...


class Missing(DeployError): ...


@dataclass(frozen=True, slots=True)
class PodAddresses:
    found: tuple[str, ...]
    problem: str = ""


class ClusterCalls:
    def __init__(self, http: httpx2.Client, namespace: str) -> None:
        self._http = http
        self.namespace = namespace

    def deployment(self, name: str) -> DeploymentState:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{name}"
        return DeploymentState.parse(self._ask("GET", path, f"Deployment {name}"))

    def scale(self, state: DeploymentState, wanted: int) -> None:
        """Raises `DeploymentChanged` on another write."""
        body = {"metadata": {"resourceVersion": state.version}, "spec": {"replicas": wanted}}
        self._ask(
            "PATCH",
            f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{state.name}/scale",
            f"Deployment {state.name}",
            params={"fieldManager": MANAGER},
            headers={"content-type": "application/merge-patch+json"},
            content=orjson.dumps(body),
        )

    def pod_addresses(self, selector: str) -> PodAddresses:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        params = {"labelSelector": selector, "limit": str(PAGE)}
        found: list[str] = []
        for _ in range(MAX_PAGES):
            listed = self._ask("GET", path, "pods", params=params)
            statuses = [each.get("status") or {} for each in listed.get("items") or ()]
            found += [
                str(each["podIP"])
                for each in statuses
                if each.get("phase") == "Running" and each.get("podIP")
            ]
            more = (listed.get("metadata") or {}).get("continue")
            if not more:
                return PodAddresses(tuple(found))
            params["continue"] = str(more)
        most = MAX_PAGES * PAGE
        return PodAddresses(
            tuple(found), f"there are more than {most} pods with {selector}; only {most} are read"
        )

    def emit(
        self, state: DeploymentState, reason: str, message: str, at: str, *, warning: bool = False
    ) -> None:
        body = {
            "metadata": {"name": f"{state.name}.{uuid.uuid4().hex[:16]}", "namespace": self.namespace},
            "involvedObject": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": state.name,
                "namespace": self.namespace,
                "uid": state.uid,
            },
            "reason": reason,
            "message": message[:1024],
            "type": "Warning" if warning else "Normal",
            "source": {"component": MANAGER},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        path = f"/api/v1/namespaces/{self.namespace}/events"
        self._ask("POST", path, "Event", content=orjson.dumps(body))

    def lease(self, name: str) -> LeaseState | None:
        try:
            return LeaseState.parse(self._ask("GET", f"{self._leases}/{name}", f"Lease {name}"))
        except Missing:
            return None

    def write_lease(self, name: str, found: LeaseState | None, spec: Mapping[str, Any]) -> None:
        """Create a Lease, or replace `found`. Raises `DeploymentChanged` on another write."""
        metadata = {"name": name, "namespace": self.namespace}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        if found is None:
            self._ask("POST", self._leases, f"Lease {name}", content=orjson.dumps(body))
        else:
            metadata["resourceVersion"] = found.version
            self._ask("PUT", f"{self._leases}/{name}", f"Lease {name}", content=orjson.dumps(body))

    @property
    def _leases(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    def _ask(self, method: str, path: str, what: str, **arguments: Any) -> Mapping[str, Any]:
        import httpx2
        from lightkube.core.exceptions import ConfigError

        try:
            answer = self._http.request(method, path, timeout=TIMEOUT_S, **arguments)
        except httpx2.HTTPError as error:
            raise DeployError(f"{what}: {unreachable(str(self._http.base_url), error)}") from None
        except (ConfigError, OSError) as error:
            raise DeployError(f"{what}: login failed: {plain(str(error))[:300]}") from None
        if not answer.is_success:
            found = refusal(answer.status_code, answer.reason_phrase, answer.content)
            if found.code == 409:
                raise DeploymentChanged(f"{what}: {found.detail}")
            if found.code == 404 and "namespaces" not in found.detail:
                raise Missing(f"{what}: not found in the namespace {self.namespace}: {found.detail}")
            raise DeployError(f"{what}: {found.text(self.namespace)}")
        try:
            body = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            body = None
        if not isinstance(body, dict):
            raise DeployError(f"{what}: the API server's answer is not an object")
        return body


def metrics_url(address: str, port: int) -> str:
    return f"http://{f'[{address}]' if ':' in address else address}:{port}/metrics"


LENGTH_S = 15
RENEW_S = 4.0
MAX_LENGTH_S = 3600


@dataclass(frozen=True, slots=True)
class LeaseState:
    version: str
    holder: str
    length_s: float
    transitions: int

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> LeaseState:
        try:
            spec = body.get("spec") or {}
            length_s = float(spec.get("leaseDurationSeconds") or LENGTH_S)
            return cls(
                str(body["metadata"]["resourceVersion"]),
                str(spec.get("holderIdentity") or ""),
                min(length_s, MAX_LENGTH_S),
                int(spec.get("leaseTransitions") or 0),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DeployError(f"the API server's Lease has an unknown format: {error}") from None


@dataclass(slots=True)
class Leadership:
    """Which of several controllers scales a Deployment: the holder of its Lease, who renews it.

    A controller takes over if the Lease did not change for its length, by the controller's own clock.
    """

    calls: ClusterCalls
    name: str
    identity: str
    clock: Clock
    holder: str = field(default="", init=False)
    _seen: LeaseState | None = field(default=None, init=False)
    _seen_s: float = field(default=-math.inf, init=False)
    _renewed_s: float = field(default=-math.inf, init=False)

    def held(self) -> bool:
        """Whether the Lease could be renewed or taken. Raises `DeployError`."""
        now_s = self.clock.monotonic_s()
        if now_s - self._renewed_s < RENEW_S:
            return True
        found = self.calls.lease(self.name)
        if found is None:
            self._write(None, now_s)
            return True
        if self._seen is None or found.version != self._seen.version:
            self._seen, self._seen_s = found, now_s
        self.holder = found.holder
        if found.holder not in ("", self.identity) and now_s - self._seen_s <= found.length_s:
            self._renewed_s = -math.inf
            return False
        self._write(found, now_s)
        return True

    def release(self) -> None:
        found = self.calls.lease(self.name) if self._renewed_s > -math.inf else None
        self._renewed_s = -math.inf
        if found is not None and found.holder == self.identity:
            self.calls.write_lease(self.name, found, self._spec("", found))

    def _write(self, found: LeaseState | None, now_s: float) -> None:
        self._renewed_s = -math.inf
        self.calls.write_lease(self.name, found, self._spec(self.identity, found))
        self.holder, self._renewed_s = self.identity, now_s

    def _spec(self, holder: str, found: LeaseState | None) -> dict[str, Any]:
        at = datetime.fromtimestamp(self.clock.wall_ms() / 1000, timezone.utc)
        time = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = found is not None and found.holder == holder
        changes = 0 if found is None else found.transitions + (not mine and bool(holder))
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": LENGTH_S,
            "renewTime": time,
            "leaseTransitions": changes,
            **({} if mine else {"acquireTime": time}),
        }
