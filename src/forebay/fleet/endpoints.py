"""The replicas behind a Kubernetes Service, from its EndpointSlices.

The API server reports changes at once: a replica joins when its pod is ready and leaves when it begins to
stop, before DNS shows it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from forebay.clients.kubernetes.connection import find_cluster, open_async_client
from forebay.clients.kubernetes.watch import Collection, Objects, Trouble, follow
from forebay.errors import DeployError, SettingError, SetupError
from forebay.fleet.discovery import MAX_REPLICAS

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
FORM = re.compile(rf"((?P<namespace>{LABEL})/)?(?P<service>{LABEL})(:(?P<port>[a-z0-9-]{{1,15}}))?")
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
        found = FORM.fullmatch(text)
        port = found and found["port"]
        if found is None or (port and port.isdigit() and not 0 < int(port) < 65_536):
            raise SettingError(f"kubernetes: {EXPECTED}, found {text[:200]!r}")
        return cls(found["service"], found["namespace"], port)


@dataclass(frozen=True)
class KubernetesReplicas:
    """Every endpoint of the Service that is ready and not stopping is a replica.

    `service` is `[NAMESPACE/]SERVICE[:PORT]`; the default namespace is that of the pod or the kubeconfig's
    context. There may be no replica. Raises `SettingError` at construction for any other form. Needs the
    right to list and watch endpointslices of discovery.k8s.io.
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
    """The sorted URLs of endpoints that are ready and not stopping; a pod with both address families once, by
    IPv4.

    An endpoint that any slice calls stopping is left out. Raises `SettingError`, naming `where`, for an
    invalid EndpointSlice, an unknown port, or too many.
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
