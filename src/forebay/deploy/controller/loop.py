"""The controller's rounds: read, decide, patch, log. A failure changes nothing; the next round retries."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from forebay.clock import Clock
from forebay.deploy.controller.cluster import ClusterCalls, DeploymentChanged, Leadership, metrics_url
from forebay.deploy.controller.decision import Decider, DeploymentState
from forebay.deploy.controller.scrape import PARTLY_READ, ObservedLoad, Scrape, observed_load
from forebay.deploy.kubernetes.deployment import FLINK_METRICS_PORT, METRICS_PORT
from forebay.errors import DeployError
from forebay.fleet.autoscale.base import ScalingLimits
from forebay.fleet.autoscale.settings import limits_of_pools, shares
from forebay.untrusted_text import counted

log = logging.getLogger(__name__)

TRIES = 4


@dataclass(frozen=True, slots=True)
class ControllerScaling:
    """`deployments`, with their shares; `limits` are for all together. `pods`, `gateway_pods`: selectors, or
    None."""

    deployments: Mapping[str, int]
    pods: str | None
    limits: ScalingLimits
    requests_per_replica: int = 32
    settle_s: float = 60.0
    gateway_pods: str | None = None


def deciders(scaling: ControllerScaling) -> dict[str, Decider]:
    parts = tuple(scaling.deployments.values())
    each = zip(scaling.deployments, shares(parts), limits_of_pools(scaling.limits, parts), strict=True)
    return {
        name: Decider(limits, scaling.requests_per_replica, scaling.settle_s, share)
        for name, share, limits in each
    }


@dataclass(slots=True)
class Controller:
    """Scales Deployments to the replicas needed, each its share, rounded up.

    Raises `SettingError` if the limits leave some without a replica. `identity`: unique to this controller.
    """

    scaling: ControllerScaling
    calls: ClusterCalls
    scrape: Scrape
    clock: Clock
    identity: str
    _deciders: dict[str, Decider] = field(init=False)
    _leases: dict[str, Leadership] = field(init=False)
    _logged: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._deciders = deciders(self.scaling)
        self._leases = {
            name: Leadership(self.calls, f"{name}-autoscale", self.identity, self.clock)
            for name in self.scaling.deployments
        }

    def round(self) -> None:
        """Raises nothing for failures of the cluster."""
        load = self._load()
        for name, lease in self._leases.items():
            try:
                if not lease.held():
                    # What this one remembers is outdated when it gets the Lease.
                    self._deciders[name] = deciders(self.scaling)[name]
                    self._warn(name, f"{name}: another controller scales it: {lease.holder}")
                    continue
                self._deciders[name].observe(load, self.clock.monotonic_s())
                self._scale(name, self._deciders[name])
            except DeployError as error:
                self._warn(name, str(error))
            else:
                self._logged.pop(name, None)

    def release(self) -> None:
        for lease in self._leases.values():
            try:
                lease.release()
            except DeployError as error:
                self._warn("release", str(error))

    def _load(self) -> ObservedLoad:
        problems: list[str] = []
        pipeline = self._read(self.scaling.pods, FLINK_METRICS_PORT, problems)
        gateway = self._read(self.scaling.gateway_pods, METRICS_PORT, problems)
        load = observed_load(pipeline, gateway, problems)
        if load.wanted is None:
            self._warn("metrics", f"the load of the replicas is unknown: {load.problems}")
        elif load.problems:
            self._warn("metrics", f"{PARTLY_READ}: {load.problems}")
        else:
            self._logged.pop("metrics", None)
        return load

    def _read(self, pods: str | None, port: int, problems: list[str]) -> list[str] | None:
        if pods is None:
            return None
        try:
            found = self.calls.pod_addresses(pods)
        except DeployError as error:
            problems.append(str(error))
            return []
        read = self.scrape([metrics_url(address, port) for address in found.found])
        problems += [found.problem] if found.problem else []
        problems += [str(each) for each in read if isinstance(each, DeployError)]
        return [each for each in read if isinstance(each, str)]

    def _scale(self, name: str, decider: Decider) -> None:
        for left in reversed(range(TRIES)):
            state = self.calls.deployment(name)
            decision = decider.decide(state, self.clock.monotonic_s())
            if decision.wanted == state.replicas:
                self._trouble(state, decision.reason)
                return
            try:
                self.calls.scale(state, decision.wanted)
            except DeploymentChanged:
                if not left:
                    raise
                continue
            message = f"{state.replicas} -> {counted(decision.wanted, 'replica')}: {decision.reason}"
            log.info("%s: %s", name, message)
            self._event(state, "Scaled", message)
            return

    def _trouble(self, state: DeploymentState, reason: str) -> None:
        key = f"trouble of {state.name}"
        if not state.trouble:
            self._logged.pop(key, None)
        elif self._logged.get(key) != state.trouble:
            self._logged[key] = state.trouble
            log.warning("%s: %s; %s", state.name, reason, state.trouble)
            self._event(state, "ReplicasMissing", state.trouble, warning=True)

    def _event(self, state: DeploymentState, reason: str, message: str, *, warning: bool = False) -> None:
        at = datetime.fromtimestamp(self.clock.wall_ms() / 1000, timezone.utc)
        try:
            self.calls.emit(state, reason, message, at.strftime("%Y-%m-%dT%H:%M:%SZ"), warning=warning)
        except DeployError as error:
            # The scale is right without the Event.
            self._warn("events", str(error))

    def _warn(self, key: str, text: str) -> bool:
        if self._logged.get(key) == text:
            return False
        self._logged[key] = text
        log.warning("%s", text)
        return True
