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
from forebay.deploy.controller.exposition import MAX_CHARS, PipelineSays, what_pipeline_says
from forebay.errors import DeployError
from forebay.ray_serve.engines import fleet_application
from forebay.ray_serve.instance import ServeApplication
from forebay.ray_serve.ports import DEPLOYMENT
from forebay.ray_serve.rest import ServeRest

log = logging.getLogger(__name__)

TIMEOUT_S = 3.0
TROUBLED = ("UNHEALTHY", "DEPLOY_FAILED")
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
        said = what_pipeline_says(each for each in found if isinstance(each, str))
        why = "; ".join(problems[:4]) or "none of the addresses tells it"
        unknown = f"the wanted number of replicas is not known: {why}"
        self._warn("metrics", unknown if said.wanted is None else "")
        return said

    def _warn(self, key: str, text: str) -> None:
        """Log what is new; an empty text: it is over."""
        if text and self._told.get(key) != text:
            log.warning("%s", text)
        self._told[key] = text


def state_of(found: ServeApplication) -> DeploymentState:
    """The fleet as the decision sees it."""
    deployment = found.deployments.get(DEPLOYMENT)
    if deployment is None:
        raise DeployError(f"{found.name}: Serve has not built it yet")
    trouble = ""
    if deployment.status in TROUBLED:
        trouble = f"a replica does not get ready: {deployment.message or found.message}"
    return DeploymentState(found.name, "", "", deployment.target, len(deployment.running()), trouble)


async def read_text(http: aiohttp.ClientSession, url: str) -> str:
    """The text at `url`, in `TIMEOUT_S` and of bounded length. Raises `DeployError`."""
    try:
        async with http.get(url, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as answer:
            answer.raise_for_status()
            found = bytearray()
            async for chunk in answer.content.iter_chunked(1 << 16):
                found += chunk
                if len(found) > MAX_CHARS:
                    raise DeployError(f"{url}: more than {MAX_CHARS >> 20} MiB of metrics")
            return found.decode("utf-8", "replace")
    except (aiohttp.ClientError, asyncio.TimeoutError, TimeoutError, OSError) as error:
        raise DeployError(f"{url} tells no metrics: {str(error) or type(error).__name__}") from None
