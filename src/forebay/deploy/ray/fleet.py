"""Submits, watches, scales and removes a fleet on a shared Ray cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from forebay.clients.ray import DEPLOYMENT
from forebay.clients.ray.instance import (
    DEPLOY_FAILED,
    RUNNING,
    ServeApplication,
    engine_urls,
    fleet_application,
    is_fleet,
)
from forebay.clients.ray.rest import ServeRest
from forebay.clock import Clock, SystemClock
from forebay.deploy.ray.config import RayFleetSpec, with_fleet, without_fleet
from forebay.errors import DeployError
from forebay.untrusted_text import counted

LOOK_S = 0.5
BESIDE_START_S = 60
"""For Ray's work before an engine starts: process, environment, imports."""
HEALTH_CHECK_FAILED = "HEALTH_CHECK_FAILED"

Note = Callable[[str], None]
Sleep = Callable[[float], Awaitable[None]]


async def apply_fleet(
    rest: ServeRest,
    spec: RayFleetSpec,
    note: Note = lambda text: None,
    *,
    clock: Clock | None = None,
    sleep: Sleep = asyncio.sleep,
) -> ServeApplication:
    """Wait until all replicas run. Serve has no conditional write: a simultaneous submission may undo it.

    Raises `DeployError`, also without progress for `startup_s` or `drain_s` and a minute.
    """
    before = await rest.instance()
    await rest.submit(with_fleet(before, spec))
    old = before.applications.get(spec.name)
    since_s = 0.0 if old is None else old.deployed_s

    def is_decided(found: ServeApplication | None) -> bool:
        # The status of an older submission does not count for this one.
        if found is None or found.deployed_s <= since_s:
            return False
        return _has_failed(found) or _all_run(found)

    found = await _until(
        is_decided,
        rest,
        spec.name,
        late="not all replicas run",
        limit_s=max(spec.startup_s, spec.drain_s) + BESIDE_START_S,
        note=note,
        clock=clock or SystemClock(),
        sleep=sleep,
    )
    assert found is not None
    if _has_failed(found):
        raise DeployError(f"{spec.name}: cannot start: {_why(found)}")
    return found


async def remove_fleet(
    rest: ServeRest,
    spec: RayFleetSpec,
    note: Note = lambda text: None,
    *,
    clock: Clock | None = None,
    sleep: Sleep = asyncio.sleep,
) -> bool:
    """Wait until the fleet's replicas have ended; False if there was none. Raises `DeployError`."""
    before = await rest.instance()
    if spec.name not in before.applications:
        return False
    if not fleet_application(before, spec.name, rest.address).deleting:
        await rest.submit(without_fleet(before, spec.name))
    await _until(
        lambda found: found is None,
        rest,
        spec.name,
        late="it has not ended",
        limit_s=spec.drain_s + BESIDE_START_S,
        note=note,
        clock=clock or SystemClock(),
        sleep=sleep,
    )
    return True


async def scale_fleet(rest: ServeRest, spec: RayFleetSpec, replicas: int) -> None:
    if fleet_application(await rest.instance(), spec.name, rest.address).deleting:
        raise DeployError(f"{spec.name}: it is being removed")
    await rest.scale(spec.name, DEPLOYMENT, replicas)


async def fleet_status(rest: ServeRest, spec: RayFleetSpec) -> dict[str, Any] | None:
    instance = await rest.instance()
    if spec.name not in instance.applications:
        return None
    return as_document(fleet_application(instance, spec.name, rest.address))


def as_document(found: ServeApplication) -> dict[str, Any]:
    deployment = found.deployments.get(DEPLOYMENT)
    return {
        "name": found.name,
        "status": found.status,
        "message": found.message or ("" if deployment is None else deployment.message),
        "wanted": 0 if deployment is None else deployment.target,
        "replicas": {} if deployment is None else dict(Counter(each.state for each in deployment.replicas)),
        "engines": list(engine_urls(found)) if is_fleet(found.config) else [],
    }


async def _until(
    done: Callable[[ServeApplication | None], bool],
    rest: ServeRest,
    name: str,
    *,
    late: str,
    limit_s: float,
    note: Note,
    clock: Clock,
    sleep: Sleep,
) -> ServeApplication | None:
    """Raises `DeployError` after `limit_s` in which no replica begins to run and none ends."""
    begun_s = moved_s = clock.monotonic_s()
    last_text = ""
    ran: set[str] = set()
    there: set[str] = set()
    while True:
        ended = False
        try:
            found = (await rest.instance()).applications.get(name)
        except DeployError as error:
            text, why = str(error), "try again"
        else:
            text, why, ended = _progress(found), _why(found), done(found)
            deployment = None if found is None else found.deployments.get(DEPLOYMENT)
            if deployment is not None:
                ran |= {each.name for each in deployment.running()}
                here = ran & {each.name for each in deployment.replicas}
                if here != there:
                    there, moved_s = here, clock.monotonic_s()
        if ended:
            return found
        if text != last_text:
            last_text = text
            note(f"{name}: {text}")
        now_s = clock.monotonic_s()
        if now_s - moved_s > limit_s:
            raise DeployError(f"{name}: {late} {now_s - begun_s:.0f} s after the submission: {text}; {why}")
        await sleep(LOOK_S)


def _has_failed(found: ServeApplication) -> bool:
    deployment = found.deployments.get(DEPLOYMENT)
    goes_on = deployment is not None and deployment.trigger == HEALTH_CHECK_FAILED
    return found.status == DEPLOY_FAILED and not goes_on


def _all_run(found: ServeApplication) -> bool:
    deployment = found.deployments.get(DEPLOYMENT)
    enough = deployment is not None and len(deployment.running()) >= deployment.target
    return found.status == RUNNING and enough


def _progress(found: ServeApplication | None) -> str:
    deployment = None if found is None else found.deployments.get(DEPLOYMENT)
    if found is None:
        return "submitted"
    if deployment is None:
        return "being removed" if found.deleting else "being built"
    states = Counter(each.state.lower() for each in deployment.replicas)
    shown = ", ".join(f"{many} {state}" for state, many in sorted(states.items())) or "none"
    return f"{found.status.lower()}: {counted(deployment.target, 'replica')} wanted, {shown}"


def _why(found: ServeApplication | None) -> str:
    if found is None:
        return "it is unknown to Serve"
    deployment = found.deployments.get(DEPLOYMENT)
    detail = (deployment.message if deployment is not None else "") or found.message
    return detail or "Serve gives no reason; look at the replicas' logs in Ray's dashboard"
