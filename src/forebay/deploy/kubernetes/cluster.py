"""Applies, checks and removes a deployment on a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.clock import Clock, SystemClock
from forebay.deploy.kubernetes.api import KINDS, KubeApi
from forebay.deploy.kubernetes.manifest import Manifest
from forebay.deploy.kubernetes.names import owned_by

CHECKED, CREATED, CONFIGURED, REMOVED = "valid", "created", "configured", "removed"
LOOK_S = 0.2
NOTICED_S = 10.0


@dataclass(frozen=True, slots=True)
class Done:
    """What was done to an object, and the server's answer."""

    kind: str
    name: str
    action: str
    warnings: tuple[str, ...] = ()


def apply_all(
    api: KubeApi, manifests: Sequence[Manifest], *, dry_run: bool = False, force: bool = False
) -> Iterator[Done]:
    """Apply the manifests in order, yielding after each one. Raises `DeployError`.

    The server checks all first: if it rejects one, nothing changes. `dry_run` only checks.
    """
    checked = [(each, api.apply(each, dry_run=True, force=force)) for each in manifests]
    for each, found in checked:
        if dry_run:
            yield Done(each.kind, each.name, CHECKED, found.warnings)
        else:
            applied = api.apply(each, force=force)
            action = CREATED if applied.created else CONFIGURED
            yield Done(each.kind, each.name, action, applied.warnings)


def remove_all(api: KubeApi, instance: str, *, dry_run: bool = False) -> Iterator[Done]:
    """Delete all objects with the labels of `instance`, yielding after each one, the job first. Stored state
    stays. Raises `DeployError`.
    """
    for api_version, kind in KINDS:
        for name in api.named(api_version, kind, owned_by(instance)):
            api.delete(api_version, kind, name, dry_run=dry_run)
            yield Done(kind, name, REMOVED)


def refused_pods(
    api: KubeApi,
    manifests: Sequence[Manifest],
    *,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[str, str]]:
    """Deployments whose pods are rejected, and why: a quota, a policy. Blocks until each has a pod or a
    rejection, for ten seconds at most. Raises `DeployError`.
    """
    time_ = clock or SystemClock()
    ends_s = time_.monotonic_s() + NOTICED_S
    for each in manifests:
        if each.kind != "Deployment":
            continue
        while True:
            found = api.read(each.api_version, each.kind, each.name)
            conditions = {one["type"]: one for one in found.get("status", {}).get("conditions", ())}
            failed = conditions.get("ReplicaFailure", {})
            if failed.get("status") == "True":
                yield each.name, str(failed.get("message", failed.get("reason", "")))
                break
            if _has_pods(found) or time_.monotonic_s() > ends_s:
                break
            sleep(LOOK_S)


def _has_pods(deployment: Mapping[str, Any]) -> bool:
    """Whether the latest version has a pod, or needs none. The first condition only shows that it was
    observed.
    """
    status, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return bool(seen and (wanted == 0 or status.get("updatedReplicas", 0) > 0))
