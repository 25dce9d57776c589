"""The replicas that a cluster reports: behind a Kubernetes Service, or of a fleet on Ray.

The Kubernetes API reports changes at once, before DNS does. Ray's dashboard is asked twice a second, once per
process; while Serve reports only some replicas, the last list stays. Each address of the dashboard's name is
a cluster with a part of the fleet.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from forebay.clients.kubernetes.connection import find_cluster, open_async_client
from forebay.clients.kubernetes.watch import Collection, Objects, Trouble, follow
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
from forebay.errors import DeployError, SettingError, SetupError
from forebay.fleet.discovery import MAX_REPLICAS, polled

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
SERVICE_FORM = re.compile(rf"((?P<namespace>{LABEL})/)?(?P<service>{LABEL})(:(?P<port>[a-z0-9-]{{1,15}}))?")
EXPECTED = "expected [NAMESPACE/]SERVICE[:PORT]"


@dataclass(frozen=True, slots=True)
class ServiceName:
    """A Service and the name or number of a port; None: the only one."""

    service: str
    namespace: str | None = None
    port: str | None = None

    @classmethod
    def parse(cls, text: str) -> ServiceName:
        """Parse `[NAMESPACE/]SERVICE[:PORT]`. Raises `SettingError` for any other form."""
        found = SERVICE_FORM.fullmatch(text)
        port = found and found["port"]
        if found is None or (port and port.isdigit() and not 0 < int(port) < 65_536):
            raise SettingError(f"kubernetes: {EXPECTED}, found {text[:200]!r}")
        return cls(found["service"], found["namespace"], port)


@dataclass(frozen=True)
class KubernetesReplicas:
    """Every endpoint of the Service that is ready and not stopping is a replica.

    The default namespace is that of the pod or the kubeconfig's context. Needs the right to list and watch
    endpointslices of discovery.k8s.io.
    """

    service: str

    def __post_init__(self) -> None:
        ServiceName.parse(self.service)

    async def urls(self) -> tuple[str, ...]:
        async with aclosing(self.updates()) as updates:
            async for found in updates:
                if isinstance(found, SettingError):
                    raise found
                return found
        return ()

    async def updates(self) -> AsyncGenerator[tuple[str, ...] | SettingError, None]:
        name = ServiceName.parse(self.service)
        try:
            config = await asyncio.get_running_loop().run_in_executor(None, find_cluster)
            http = open_async_client(config)
        except (DeployError, SetupError) as error:
            yield SettingError(f"kubernetes: {error}")
            return
        namespace = name.namespace or config.namespace
        collection = Collection(
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
            namespace=namespace,
            selector=f"kubernetes.io/service-name={name.service}",
            what=f"kubernetes: the endpoints of the Service {namespace}/{name.service}",
        )
        before: tuple[str, ...] | None = None
        async with http, aclosing(follow(http, collection)) as found:
            async for each in found:
                try:
                    urls = _urls_in(each, name, collection)
                except SettingError as error:
                    before = None
                    yield error
                else:
                    if urls != before:
                        before = urls
                        yield urls


def _urls_in(found: Objects | Trouble, name: ServiceName, collection: Collection) -> tuple[str, ...]:
    if isinstance(found, Trouble):
        raise SettingError(found.text)
    if not found:
        raise SettingError(
            f"{collection.what}: there are none, not even an empty EndpointSlice; is there such a Service "
            f"(kubectl -n {collection.namespace} get service {name.service})?"
        )
    return endpoint_urls(found.values(), name.port, where=collection.what)


def endpoint_urls(slices: Iterable[Mapping[str, Any]], port: str | None, *, where: str) -> tuple[str, ...]:
    """The sorted URLs of endpoints that are ready and that no slice calls stopping. A pod with both address
    families is listed once, by IPv4. Raises `SettingError`, naming `where`.
    """
    chosen: dict[str, tuple[str, str]] = {}
    stopping: set[str] = set()
    for each in slices:
        try:
            family, ports = str(each["addressType"]), each.get("ports") or ()
            for endpoint in each.get("endpoints") or ():
                conditions = endpoint.get("conditions") or {}
                target = endpoint.get("targetRef") or {}
                address = str(endpoint["addresses"][0])
                pod = str(target.get("uid") or target.get("name") or address)
                if conditions.get("terminating"):
                    stopping.add(pod)
                elif conditions.get("ready") is not False and (
                    pod not in chosen or (family, address) < chosen[pod]
                ):
                    chosen[pod] = family, _url(family, address, _port(ports, port, where))
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise SettingError(f"{where}: an EndpointSlice of an unknown form: {error}") from None
    urls = {url for pod, (_, url) in chosen.items() if pod not in stopping}
    if len(urls) > MAX_REPLICAS:
        raise SettingError(f"{where}: more than {MAX_REPLICAS} replicas")
    return tuple(sorted(urls))


def _url(family: str, address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if family == "IPv6" else f"http://{address}:{port}"


def _port(ports: Iterable[Mapping[str, Any]], wanted: str | None, where: str) -> int:
    if wanted is not None and wanted.isdigit():
        return int(wanted)
    found = {str(each.get("name") or ""): each.get("port") for each in ports}
    number = found.get(wanted) if wanted is not None else next(iter(found.values()), None)
    if wanted is None and len(found) > 1:
        names = ", ".join(sorted(found))
        raise SettingError(f"{where}: {EXPECTED} with a port, which is one of {names}")
    if not isinstance(number, int):
        names = ", ".join(sorted(found)) or "none"
        raise SettingError(f"{where}: there is no port {wanted or ''}; its ports are {names}")
    return number


Look = Callable[[str], Awaitable[ServeInstance]]
RAY_FORM = re.compile(r"(?P<address>https?://[^/\s]{1,500})/(?P<name>[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)")
TIMEOUT_S = 10.0


async def look_at(address: str) -> ServeInstance:
    async with ServeRest(address, timeout_s=TIMEOUT_S) as rest:
        return await rest.instance()


LOOKS = CachedPoll(look_at, SystemClock(), limit_s=TIMEOUT_S + 1)
"""Shared by the subtasks of a pipeline, whose replicas were unpickled separately."""


@dataclass(frozen=True, slots=True)
class RayPlace:
    address: str
    name: str

    @classmethod
    def parse(cls, text: str) -> RayPlace:
        """Parse `http://HEAD:8265/NAME`. Raises `SettingError` for any other form."""
        found = RAY_FORM.fullmatch(text)
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
    """Every replica of the fleet that takes requests; `place` is `http://HEAD:8265/NAME`."""

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
    deployment = found.deployments.get(DEPLOYMENT)
    if deployment is not None and deployment.recovering:
        raise DeployError(f"{found.name}: Serve has restarted and does not report all replicas yet")
    if deployment is None and before and not found.deleting:
        # The old replicas run until the new version is built, or if it cannot be.
        if found.status == DEPLOY_FAILED:
            raise DeployError(f"{found.name}: Serve did not build the last version: {found.message}")
        raise DeployError(f"{found.name}: Serve is building a version, and reports no replicas meanwhile")
