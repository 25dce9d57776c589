"""A fleet on a Ray cluster: put there beside what others have there, looked after, taken away again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from forebay.clock import Clock, SystemClock
from forebay.deploy.ray.config import with_fleet, without_fleet
from forebay.deploy.ray.settings import RayFleetSpec
from forebay.errors import DeployError
from forebay.ray_serve.engines import engine_urls, fleet_application, is_fleet
from forebay.ray_serve.instance import ServeApplication
from forebay.ray_serve.ports import DEPLOYMENT
from forebay.ray_serve.rest import ServeRest

LOOK_S = 0.5
BESIDE_START_S = 60
"""For what Ray does before an engine starts: a process, an environment, imports."""
DEPLOY_FAILED, RUNNING = "DEPLOY_FAILED", "RUNNING"

Say = Callable[[str], None]
Sleep = Callable[[float], Awaitable[None]]


async def apply_fleet(
    rest: ServeRest,
    spec: RayFleetSpec,
    say: Say = lambda words: None,
    *,
    clock: Clock | None = None,
    sleep: Sleep = asyncio.sleep,
) -> ServeApplication:
    """Submit the fleet, and wait until all of its replicas run; `say` is told of progress.

    Other applications stay as they are. Serve has no conditional write: whoever submits at the same moment
    may undo it. Raises `DeployError` where the name is another's, and where a replica does not get ready
    within `startup_s` and a minute.
    """
    before = await rest.instance()
    await rest.submit(with_fleet(before, spec))
    old = before.applications.get(spec.name)
    since_s = 0.0 if old is None else old.deployed_s
    time_ = clock or SystemClock()
    end_s = time_.monotonic_s() + spec.startup_s + BESIDE_START_S
    told = ""
    while True:
        instance = await rest.instance()
        found = instance.applications.get(spec.name)
        words = _progress(found)
        if words != told:
            told = words
            say(f"{spec.name}: {words}")
        # What is of an older submission tells nothing of this one.
        if found is not None and found.deployed_s > since_s:
            if found.status == DEPLOY_FAILED:
                raise DeployError(f"{spec.name}: it does not start: {_why(found)}")
            if found.status == RUNNING and _all_run(found):
                return found
        if time_.monotonic_s() > end_s:
            raise DeployError(
                f"{spec.name}: not all replicas run {spec.startup_s} s (startup_s) after the submission: "
                f"{words}; {_why(found)}"
            )
        await sleep(LOOK_S)


async def remove_fleet(
    rest: ServeRest,
    spec: RayFleetSpec,
    say: Say = lambda words: None,
    *,
    clock: Clock | None = None,
    sleep: Sleep = asyncio.sleep,
) -> bool:
    """Take the fleet away, and wait until its replicas have ended; False where there was none. Other
    applications stay. Raises `DeployError` where the application is another's, or its replicas stay."""
    before = await rest.instance()
    if spec.name not in before.applications:
        return False
    fleet_application(before, spec.name, rest.address)
    await rest.submit(without_fleet(before, spec.name))
    time_ = clock or SystemClock()
    end_s = time_.monotonic_s() + spec.drain_s + BESIDE_START_S
    told = ""
    while True:
        found = (await rest.instance()).applications.get(spec.name)
        if found is None:
            return True
        words = _progress(found)
        if words != told:
            told = words
            say(f"{spec.name}: {words}")
        if time_.monotonic_s() > end_s:
            raise DeployError(f"{spec.name}: it has not ended {spec.drain_s} s (drain_s) later: {words}")
        await sleep(LOOK_S)


async def scale_fleet(rest: ServeRest, spec: RayFleetSpec, replicas: int) -> None:
    """Have the fleet get this number of replicas, 0 included; they start and end meanwhile. Raises
    `DeployError` where there is no such fleet."""
    fleet_application(await rest.instance(), spec.name, rest.address)
    await rest.scale(spec.name, DEPLOYMENT, replicas)


async def fleet_status(rest: ServeRest, spec: RayFleetSpec) -> dict[str, Any] | None:
    """What there is of the fleet, as a document; None where there is nothing of it. Raises `DeployError`
    where the name is another's."""
    instance = await rest.instance()
    if spec.name not in instance.applications:
        return None
    return as_document(fleet_application(instance, spec.name, rest.address))


def as_document(found: ServeApplication) -> dict[str, Any]:
    """A fleet as a document."""
    deployment = found.deployments.get(DEPLOYMENT)
    return {
        "name": found.name,
        "status": found.status,
        "message": found.message or ("" if deployment is None else deployment.message),
        "wanted": 0 if deployment is None else deployment.target,
        "replicas": {} if deployment is None else dict(Counter(each.state for each in deployment.replicas)),
        "engines": list(engine_urls(found)) if is_fleet(found.config) else [],
    }


def _all_run(found: ServeApplication) -> bool:
    deployment = found.deployments.get(DEPLOYMENT)
    return deployment is not None and len(deployment.running()) >= deployment.target


def _progress(found: ServeApplication | None) -> str:
    deployment = None if found is None else found.deployments.get(DEPLOYMENT)
    if found is None or deployment is None:
        return "being built" if found is not None else "submitted"
    states = Counter(each.state.lower() for each in deployment.replicas)
    shown = ", ".join(f"{many} {state}" for state, many in sorted(states.items())) or "none"
    return f"{found.status.lower()}: {deployment.target} replicas wanted, {shown}"


def _why(found: ServeApplication | None) -> str:
    if found is None:
        return "Serve does not know it"
    deployment = found.deployments.get(DEPLOYMENT)
    said = (deployment.message if deployment is not None else "") or found.message
    return said or "Serve gives no reason; look at the replicas' logs in Ray's dashboard"
