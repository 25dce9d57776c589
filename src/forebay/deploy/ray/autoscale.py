"""Scales a fleet on Ray as a pipeline's metrics ask: read, decide, scale, say why. Whatever fails changes
nothing, and the next round begins anew from what the cluster says then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from forebay.clock import Clock
from forebay.deploy.controller.decision import Decider, DeploymentState
from forebay.deploy.controller.exposition import (
    MAX_CHARS,
    PARTLY_READ,
    PipelineSays,
    shown,
    what_pipeline_says,
)
from forebay.errors import DeployError
from forebay.ray_serve.engines import fleet_application
from forebay.ray_serve.instance import DEPLOY_FAILED, ServeApplication, ServeDeployment
from forebay.ray_serve.ports import DEPLOYMENT
from forebay.ray_serve.rest import ServeRest

log = logging.getLogger(__name__)

TIMEOUT_S = 3.0
UNHEALTHY, STARTUP_FAILED = "UNHEALTHY", "REPLICA_STARTUP_FAILED"
Read = Callable[[str], Awaitable[str]]
"""The text at a URL. Raises `DeployError` where there is none."""


@dataclass(slots=True)
class RayScaler:
    """Has the fleet `name` get the number of replicas that the pipeline wants, which `metrics` tell: URLs of
    text in Prometheus' format, of which the largest number counts.

    Serve knows no condition on which it scales: one scaler for a fleet.
    """

    rest: ServeRest
    name: str
    metrics: Sequence[str]
    decider: Decider
    clock: Clock
    read: Read
    _told: dict[str, str] = field(default_factory=dict, init=False)

    async def round(self) -> None:
        """Look once, and scale where it has to be. Raises nothing for what clusters do."""
        self.decider.hear(await self._heard(), self.clock.monotonic_s())
        try:
            instance = await self.rest.instance()
            state = state_of(fleet_application(instance, self.name, self.rest.address))
            decision = self.decider.decide(state, self.clock.monotonic_s())
            if decision.wanted != state.replicas:
                await self.rest.scale(self.name, DEPLOYMENT, decision.wanted)
                log.info(
                    "%s: %d -> %d replicas: %s", self.name, state.replicas, decision.wanted, decision.reason
                )
        except DeployError as error:
            self._warn("cluster", str(error))
            return
        self._warn("cluster", f"{self.name}: {decision.reason}; {state.trouble}" if state.trouble else "")

    async def _heard(self) -> PipelineSays:
        found = await asyncio.gather(*map(self.read, self.metrics), return_exceptions=True)
        problems = []
        for each in found:
            if isinstance(each, DeployError):
                problems.append(str(each))
            elif isinstance(each, BaseException):
                raise each
        said = what_pipeline_says((each for each in found if isinstance(each, str)), problems)
        if said.wanted is None:
            why = said.problems or "none of the addresses tells it"
            self._warn("metrics", f"the wanted number of replicas is not known: {why}")
        else:
            self._warn("metrics", f"{PARTLY_READ}: {said.problems}" if said.problems else "")
        return said

    def _warn(self, key: str, text: str) -> None:
        """Log what is new; an empty text: it is over."""
        if text and self._told.get(key) != text:
            log.warning("%s", text)
        self._told[key] = text


def state_of(found: ServeApplication) -> DeploymentState:
    """The fleet as the decision sees it."""
    deployment = found.deployments.get(DEPLOYMENT)
    if found.deleting:
        raise DeployError(f"{found.name}: it is being removed")
    if deployment is None:
        raise DeployError(f"{found.name}: Serve has not built it yet")
    trouble = ""
    if _does_not_start(deployment):
        trouble = f"a replica does not get ready: {deployment.message or found.message}"
    return DeploymentState(found.name, "", "", deployment.target, len(deployment.running()), trouble)


def _does_not_start(deployment: ServeDeployment) -> bool:
    """Whether new replicas do not get ready. One that has run, and is replaced, does not count."""
    at_start = deployment.status == UNHEALTHY and deployment.trigger == STARTUP_FAILED
    return deployment.status == DEPLOY_FAILED or at_start


async def read_text(http: aiohttp.ClientSession, url: str) -> str:
    """The text at `url`, in `TIMEOUT_S` and of bounded length. Redirects are not followed. Raises
    `DeployError`, in which no password of the URL is shown."""
    where, timeout = shown(url), aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with http.get(url, timeout=timeout, allow_redirects=False) as answer:
            if answer.status != 200:
                raise DeployError(f"{where} tells no metrics: expected status 200, found {answer.status}")
            found = bytearray()
            async for chunk in answer.content.iter_chunked(1 << 16):
                found += chunk
                if len(found) > MAX_CHARS:
                    raise DeployError(f"{where}: more than {MAX_CHARS >> 20} MiB of metrics")
            return found.decode("utf-8", "replace")
    except (aiohttp.ClientError, asyncio.TimeoutError, TimeoutError, OSError, ValueError) as error:
        # What else the error says may quote the URL.
        said = getattr(error, "strerror", None) or type(error).__name__
        raise DeployError(f"{where} tells no metrics: {said}") from None
