"""Scales a fleet on Ray by the load of pipeline and gateway.

If the dashboard has several addresses, one cluster is replacing another: each gets the share of its
`target_capacity`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from forebay.clients.ray import DEPLOYMENT
from forebay.clients.ray.instance import DEPLOY_FAILED, ServeApplication, ServeDeployment, fleet_application
from forebay.clients.ray.rest import ServeRest, each_address
from forebay.clock import Clock
from forebay.deploy.controller.decision import Decider, DeploymentState
from forebay.deploy.controller.scrape import PARTLY_READ, ObservedLoad, observed_load
from forebay.errors import DeployError

log = logging.getLogger(__name__)

UNHEALTHY, STARTUP_FAILED = "UNHEALTHY", "REPLICA_STARTUP_FAILED"
WHOLE_PERCENT = 100.0
Read = Callable[[str], Awaitable[str]]
Addresses = Callable[[str], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class FleetPart:
    address: str
    state: DeploymentState
    percent: float = WHOLE_PERCENT

    def share(self, whole: int) -> int:
        """Rounded as Serve does: at least one unless `whole` is 0."""
        if self.percent == 0 or whole == 0:
            return 0
        return max(1, math.floor(whole * self.percent / WHOLE_PERCENT + 0.5))

    def whole(self) -> DeploymentState:
        if self.percent in (0, WHOLE_PERCENT):
            return self.state
        scale = WHOLE_PERCENT / self.percent
        return replace(
            self.state, replicas=round(self.state.replicas * scale), ready=round(self.state.ready * scale)
        )


@dataclass(slots=True)
class RayScaler:
    """Serve has no conditional update: run one scaler per fleet."""

    address: str
    name: str
    metrics: Sequence[str]
    decider: Decider
    clock: Clock
    read: Read
    addresses: Addresses = each_address
    gateway_metrics: Sequence[str] = ()
    _logged: dict[str, str] = field(default_factory=dict, init=False)

    async def round(self) -> None:
        """Raises nothing for failures of clusters."""
        self.decider.observe(await self._load(), self.clock.monotonic_s())
        try:
            parts = await self._parts()
            # A new cluster starts empty: the part with the most replicas shows what the fleet has.
            most = max(parts, key=lambda part: (part.percent, part.state.replicas))
            whole = most.whole()
            decision = self.decider.decide(whole, self.clock.monotonic_s())
            for part in parts:
                await self._scale(part, part.share(decision.wanted), decision.reason)
        except DeployError as error:
            self._warn("cluster", str(error))
            return
        self._warn("cluster", f"{self.name}: {decision.reason}; {whole.trouble}" if whole.trouble else "")

    async def _parts(self) -> list[FleetPart]:
        found = await asyncio.gather(*map(self._part, await self.addresses(self.address)))
        parts = [each for each in found if isinstance(each, FleetPart)]
        if not parts:
            raise next(each for each in found if isinstance(each, DeployError))
        return parts

    async def _part(self, address: str) -> FleetPart | DeployError:
        try:
            async with ServeRest(address) as rest:
                instance = await rest.instance()
            state = state_of(fleet_application(instance, self.name, address))
        except DeployError as error:
            return error
        return FleetPart(address, state, instance.capacity_percent)

    async def _scale(self, part: FleetPart, replicas: int, reason: str) -> None:
        before = part.state.replicas
        if replicas == before:
            return
        async with ServeRest(part.address) as rest:
            await rest.scale(self.name, DEPLOYMENT, replicas)
        log.info("%s: %d -> %d replicas: %s", self.name, before, replicas, reason)

    async def _load(self) -> ObservedLoad:
        problems: list[str] = []
        pipeline = await self._texts(self.metrics, problems)
        gateway = await self._texts(self.gateway_metrics, problems)
        load = observed_load(pipeline, gateway, problems)
        if load.wanted is None:
            self._warn("metrics", f"the load of the replicas is unknown: {load.problems}")
        else:
            self._warn("metrics", f"{PARTLY_READ}: {load.problems}" if load.problems else "")
        return load

    async def _texts(self, urls: Sequence[str], problems: list[str]) -> list[str] | None:
        if not urls:
            return None
        found = [each for named in await asyncio.gather(*map(self._read, urls)) for each in named]
        problems += [str(each) for each in found if isinstance(each, DeployError)]
        return [each for each in found if isinstance(each, str)]

    async def _read(self, named: str) -> list[str | DeployError]:
        async def text(url: str) -> str | DeployError:
            try:
                return await self.read(url)
            except DeployError as error:
                return error

        try:
            return await asyncio.gather(*map(text, await self.addresses(named)))
        except DeployError as error:
            return [error]

    def _warn(self, key: str, text: str) -> None:
        if text and self._logged.get(key) != text:
            log.warning("%s", text)
        self._logged[key] = text


def state_of(found: ServeApplication) -> DeploymentState:
    deployment = found.deployments.get(DEPLOYMENT)
    if found.deleting:
        raise DeployError(f"{found.name}: it is being removed")
    if deployment is None:
        raise DeployError(f"{found.name}: Serve has not built it yet")
    trouble = ""
    if _does_not_start(deployment):
        trouble = f"a replica does not become ready: {deployment.message or found.message}"
    return DeploymentState(found.name, "", "", deployment.target, len(deployment.running()), trouble)


def _does_not_start(deployment: ServeDeployment) -> bool:
    at_start = deployment.status == UNHEALTHY and deployment.trigger == STARTUP_FAILED
    return deployment.status == DEPLOY_FAILED or at_start
