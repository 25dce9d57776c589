"""The replicas of a fleet on Ray, as the cluster reports them.

The dashboard is asked twice a second, once per process. A replica joins when its engine is healthy, and
leaves when Serve begins to stop it. While Serve reports only some of them, the last list stays. If the
dashboard's name has several addresses, each is a cluster with a part of the fleet, for example while a new
one replaces an old one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from forebay.clients.ray import DEPLOYMENT
from forebay.clients.ray.instance import (
    DEPLOY_FAILED,
    ServeApplication,
    ServeInstance,
    engine_urls,
    fleet_application,
)
from forebay.clients.ray.rest import CachedPoll, ServeRest, each_address
from forebay.clock import SystemClock
from forebay.engine.client import replica_url
from forebay.errors import DeployError, SettingError
from forebay.fleet.discovery import MAX_REPLICAS, polled

Look = Callable[[str], Awaitable[ServeInstance]]
FORM = re.compile(r"(?P<address>https?://[^/\s]{1,500})/(?P<name>[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)")
TIMEOUT_S = 10.0


async def look_at(address: str) -> ServeInstance:
    """Ask the cluster."""
    async with ServeRest(address, timeout_s=TIMEOUT_S) as rest:
        return await rest.instance()


LOOKS = CachedPoll(look_at, SystemClock(), limit_s=TIMEOUT_S + 1)
"""Shared by the subtasks of a pipeline, whose replicas were unpickled separately."""


@dataclass(frozen=True, slots=True)
class RayPlace:
    """The dashboard of a Ray cluster, and an application there."""

    address: str
    name: str

    @classmethod
    def parse(cls, text: str) -> RayPlace:
        """Parse `http://HEAD:8265/NAME`. Raises `SettingError` for any other form."""
        found = FORM.fullmatch(text)
        if found is None:
            # Not quoted if it may hold a password.
            shown = "" if "@" in text else f", found {text[:200]!r}"
            raise SettingError(f"ray: expected http://HEAD:8265/NAME{shown}")
        try:
            return cls(replica_url(found["address"]), found["name"])
        except SettingError as error:
            raise SettingError(f"ray: expected http://HEAD:8265/NAME: {error}") from None


@dataclass(frozen=True)
class RayReplicas:
    """Every replica of the fleet that takes requests; `place` is `http://HEAD:8265/NAME`.

    It is asked every `every_s`, once for all in this process. There may be no replica. Raises `SettingError`
    at construction for any other form.
    """

    place: str
    every_s: float = 0.5

    def __post_init__(self) -> None:
        RayPlace.parse(self.place)

    async def urls(self) -> tuple[str, ...]:
        return self._together(await self._by_cluster({}, look_at))

    def updates(self) -> AsyncGenerator[tuple[str, ...] | SettingError, None]:
        last: dict[str, tuple[str, ...]] = {}

        async def look() -> tuple[str, ...]:
            nonlocal last
            last = await self._by_cluster(last, lambda head: LOOKS.instance(head, self.every_s))
            return self._together(last)

        return polled(look, self.every_s)

    async def _by_cluster(
        self, before: Mapping[str, tuple[str, ...]], look: Look
    ) -> dict[str, tuple[str, ...]]:
        """The replicas of each cluster by dashboard; those of `before` if it fails. Raises `SettingError` if
        all fail."""
        place = RayPlace.parse(self.place)
        try:
            heads = await each_address(place.address)
        except DeployError as error:
            raise SettingError(f"ray: {error}") from None
        # A cluster known by name may be any of several addresses.
        alone = before.get(place.address, ()) if len(before) == 1 else ()
        before = {head: before.get(head, alone) for head in heads}
        answers = await asyncio.gather(
            *(_replicas_of(head, place.name, before[head], look) for head in heads)
        )
        failures = [answer for answer in answers if isinstance(answer, DeployError)]
        if len(failures) == len(heads):
            raise SettingError(f"ray: {failures[0]}")
        return {
            head: before[head] if isinstance(answer, DeployError) else answer
            for head, answer in zip(heads, answers, strict=True)
        }

    def _together(self, found: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        urls = tuple(sorted({url for each in found.values() for url in each}))
        if len(urls) > MAX_REPLICAS:
            raise SettingError(
                f"ray: {RayPlace.parse(self.place).name} has more than {MAX_REPLICAS} replicas"
            )
        return urls


async def _replicas_of(
    head: str, name: str, before: tuple[str, ...], look: Look
) -> tuple[str, ...] | DeployError:
    try:
        found = fleet_application(await look(head), name, head)
        _check_whole(found, before)
        return engine_urls(found)
    except DeployError as error:
        return error


def _check_whole(found: ServeApplication, before: tuple[str, ...]) -> None:
    """Raise `DeployError` if Serve does not report all replicas; `before` are the last ones."""
    deployment = found.deployments.get(DEPLOYMENT)
    if deployment is not None and deployment.recovering:
        raise DeployError(f"{found.name}: Serve has restarted and does not report all replicas yet")
    if deployment is None and before and not found.deleting:
        # The old replicas run until the new version is built, or if it cannot be.
        if found.status == DEPLOY_FAILED:
            raise DeployError(f"{found.name}: Serve did not build the last version: {found.message}")
        raise DeployError(f"{found.name}: Serve is building a version, and reports no replicas meanwhile")
