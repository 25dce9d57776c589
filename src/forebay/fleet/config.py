"""What a fleet is, as a value that can be written down and pickled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from forebay.documents.fields import HttpUrl, wrong
from forebay.errors import SettingError
from forebay.fleet.cache_subscriber import check_form
from forebay.fleet.discovery import MAX_REPLICAS, ReplicaList
from forebay.fleet.endpoints import ServiceName
from forebay.fleet.health import RULES, HealthRules
from forebay.fleet.policies import DEFAULT_POLICY, make_policy
from forebay.fleet.ray_replicas import RayPlace
from forebay.settings import SecretRef

LEAST_STALL_S = 1.0
"""No replica is considered stalled after less silence than this."""


def stall_s_for(timeout_s: float) -> float:
    """`FleetConfig.stall_s` for calls that may be silent for `timeout_s`: soon enough for another replica to
    take over within the same time."""
    return max(LEAST_STALL_S, timeout_s / 4)


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """Replicas, the model they serve, and how requests are spread over them. Holds no secret.

    `model` None: each request goes to replicas that list its model. Every replica is looked at each
    `check_s`; a look may take `check_timeout_s`. One that is silent for `stall_s` with requests in flight,
    and for four times as long as expected, is considered stalled. `routing` is a policy's name; the default
    also holds requests back until a replica has room. There are never more than `capacity` requests at a
    time, and none should be at a replica for more than half of `deadline_s`. `kv_events`, such as
    `tcp://{host}:5557` or `tcp://{host}:{port+200}`, is where each replica publishes what its KV cache
    evicts; None: what we send and the size of the cache tell. `scaled`: replicas are started when requests
    wait, which are not late while the list is empty. Without `stream`, answers are asked for in one piece.
    Raises `SettingError` for an unknown policy and another form of `kv_events`.
    """

    replicas: ReplicaList
    model: str | None = None
    api_key: SecretRef | None = None
    routing: str = DEFAULT_POLICY
    check_s: float = 1.0
    check_timeout_s: float = 5.0
    stall_s: float = 10.0
    capacity: float = math.inf
    deadline_s: float = math.inf
    health: HealthRules = RULES
    kv_events: str | None = None
    scaled: bool = False
    stream: bool = True

    def __post_init__(self) -> None:
        make_policy(self.routing)
        if self.kv_events is not None:
            check_form(self.kv_events)
        if not (self.check_s > 0 and self.check_timeout_s > 0 and self.stall_s > 0):
            raise SettingError("fleet: expected check_s, check_timeout_s and stall_s above 0")


def _listed(value: Any) -> Any:
    return () if value is None else (value,) if isinstance(value, str) else value


def _by_url(value: Any) -> Any:
    return {"url": value} if isinstance(value, str | list) else value


def _policy(name: str) -> str:
    try:
        make_policy(name)
    except SettingError as error:
        raise wrong(str(error).removeprefix("policy: ")) from None
    return name


def _kv_events(form: str) -> str:
    try:
        return check_form(form)
    except SettingError as error:
        raise wrong(str(error).removeprefix("kv_events: ")) from None


def _ray(text: str) -> str:
    try:
        RayPlace.parse(text)
    except SettingError as error:
        raise wrong(str(error).removeprefix("ray: ")) from None
    return text


def _service(text: str) -> str:
    try:
        ServiceName.parse(text)
    except SettingError as error:
        raise wrong(str(error).removeprefix("kubernetes: ")) from None
    return text


Urls = Annotated[tuple[HttpUrl, ...], BeforeValidator(_listed), Field(max_length=MAX_REPLICAS)]
"""One address, or a list of them."""
ByUrl = BeforeValidator(_by_url)
"""A mapping with `url` may be written as that alone."""
Routing = Annotated[str, AfterValidator(_policy)]
"""A policy's name."""
KvEvents = Annotated[str, AfterValidator(_kv_events)]
"""Where replicas publish the events of their caches; see `forebay.fleet.cache_subscriber`."""
KubernetesService = Annotated[str, AfterValidator(_service)]
"""A Service whose endpoints are replicas; see `forebay.fleet.endpoints`."""
RayApplication = Annotated[str, AfterValidator(_ray)]
"""A fleet on Ray; see `forebay.fleet.ray_replicas`."""
