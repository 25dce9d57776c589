"""How many replicas a Deployment should have. Pure: the time is passed in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.deploy.controller.scrape import ObservedLoad
from forebay.errors import DeployError
from forebay.fleet.autoscale.base import Decision, ReplicaSpeed, Scaler, ScalingLimits, Signals
from forebay.fleet.autoscale.proportional import StabilizationWindow
from forebay.fleet.autoscale.settings import WHOLE, Share

ANY_SPEED_S = 1.0


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """A patch names the `version`. `trouble`: why wanted replicas do not start."""

    name: str
    uid: str
    version: str
    replicas: int
    ready: int
    trouble: str = ""

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> DeploymentState:
        try:
            metadata, status = body["metadata"], body.get("status") or {}
            replicas, ready = body["spec"]["replicas"], status.get("readyReplicas", 0)
            if type(replicas) is not int or type(ready) is not int:
                raise TypeError("expected whole numbers of replicas")
            conditions = {str(each["type"]): each for each in status.get("conditions") or ()}
            return cls(
                str(metadata["name"]),
                str(metadata["uid"]),
                str(metadata["resourceVersion"]),
                replicas,
                ready,
                _trouble(conditions),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise DeployError(f"the API server's Deployment has an unknown format: {error}") from None


def _trouble(conditions: Mapping[str, Mapping[str, Any]]) -> str:
    failure, progress = conditions.get("ReplicaFailure", {}), conditions.get("Progressing", {})
    if failure.get("status") == "True":
        return f"pods are rejected: {str(failure.get('message', ''))[:500]}"
    if progress.get("status") == "False":
        return f"a replica does not become ready: {str(progress.get('message', ''))[:500]}"
    return ""


@dataclass(slots=True)
class _ByLoad:
    hold: StabilizationWindow
    share: Share
    requests_per_replica: int
    load: ObservedLoad = field(default_factory=ObservedLoad)

    def decide(self, signals: Signals) -> Decision:
        load, there = self.load, signals.replicas
        total = load.replicas(self.requests_per_replica)
        needed = here = math.ceil(self.share.of_work(total) - 1e-9)
        if needed > there:
            # Requests that wait for booting replicas need no further ones; a wanted number is exact.
            least = max(there, self.share.of_replicas(load.wanted or 0))
            here = max(needed - len(signals.starting), least)
        held = self.hold.add(here, signals.now_s)
        text = str(load)
        if load.gateway is not None:
            text += f": {math.ceil(total - 1e-9)} in all"
        if not self.share.whole:
            text += f", {needed} of them here (share {self.share})"
        if here != needed:
            text += f", {len(signals.starting)} are starting"
        if held == here:
            return Decision(held, text)
        return Decision(held, f"{text}, and {held} were needed a while ago")


@dataclass(slots=True)
class Decider:
    """Decides for one Deployment. Removes replicas only after `settle_s`, and none while some metrics are
    missing.

    An old load changes nothing. Adds none while pods are rejected or do not become ready. While the load is
    unknown, existing replicas count as needed, unless the fleet `begins_with_most` and none of its
    `limits.most` replicas is ready.
    """

    limits: ScalingLimits
    requests_per_replica: int = 32
    settle_s: float = 60.0
    share: Share = WHOLE
    begins_with_most: bool = False
    _read_s: float = field(init=False)
    _problems: str = field(default="", init=False)
    _begun: bool = field(default=False, init=False)
    _policy: _ByLoad = field(init=False)
    _scaler: Scaler = field(init=False)

    def __post_init__(self) -> None:
        self._read_s = -math.inf
        self._policy = _ByLoad(StabilizationWindow(self.settle_s), self.share, self.requests_per_replica)
        speed = ReplicaSpeed(ANY_SPEED_S, ANY_SPEED_S, self.requests_per_replica)
        self._scaler = Scaler(self._policy, speed, self.limits)

    def observe(self, load: ObservedLoad, now_s: float) -> None:
        self._problems = load.problems
        if load.wanted is not None:
            self._policy.load, self._read_s = load, now_s

    def decide(self, state: DeploymentState, now_s: float) -> Decision:
        age_s = now_s - self._read_s
        if age_s > self.limits.stale_after_s:
            since = "yet" if age_s == math.inf else f"for {age_s:.0f} s"
            why = f"the load was not read {since}: no change"
            self._keep_wanted(state, now_s)
            return Decision(state.replicas, why)
        if not self._begun:
            self._keep_wanted(state, now_s)
        self._begun = True
        ready = min(state.ready, state.replicas)
        signals = Signals(
            now_s,
            ready=ready,
            starting=(0.0,) * (state.replicas - ready),
            running=self.share.of_work(self._policy.load.requests),
            age_s=age_s,
        )
        decision = self._scaler.decide(signals)
        if self._problems:
            self._keep(state, now_s)
            if decision.wanted < state.replicas:
                why = f"{decision.reason}; none is removed: some metrics are missing: {self._problems}"
                return Decision(state.replicas, why)
        if state.trouble and decision.wanted > state.replicas:
            why = f"{decision.reason}; not raised above {state.replicas}: {state.trouble}"
            return Decision(state.replicas, why)
        return decision

    def _keep_wanted(self, state: DeploymentState, now_s: float) -> None:
        just_begun = not state.ready and state.replicas == self.limits.most
        if not (self.begins_with_most and just_begun):
            self._keep(state, now_s)

    def _keep(self, state: DeploymentState, now_s: float) -> None:
        self._policy.hold.add(min(state.replicas, self.limits.ceiling), now_s)
