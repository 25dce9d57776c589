"""Settings of a fleet, and of where its replicas are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from forebay.errors import SettingError
from forebay.fields import HttpUrl, LocalPath, Model, wrong
from forebay.fleet.cache_subscriber import check_form
from forebay.fleet.discovery import MAX_REPLICAS, DnsReplicas, FileReplicas, FixedReplicas, ReplicaList
from forebay.fleet.endpoints import KubernetesReplicas, RayPlace, RayReplicas, ServiceName
from forebay.fleet.health import RULES, HealthRules
from forebay.settings import SecretRef

if TYPE_CHECKING:
    from forebay.fleet.engine import FleetEngine

DEFAULT_POLICY = "expected_ttft"
MIN_STALL_S = 1.0


def stall_s_for(timeout_s: float) -> float:
    """A `FleetConfig.stall_s` with which another replica can take over within `timeout_s`."""
    return max(MIN_STALL_S, timeout_s / 4)


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """Replicas, their model, and how requests are spread over them. Holds no secret.

    `model` None: requests go to replicas that list their model. A replica is stalled if it is silent for
    `stall_s` with requests in flight, and for four times as long as expected. At most `capacity` requests are
    in flight, and none should take more than half of `deadline_s`. `kv_events` (see `cache_endpoint`): where
    replicas publish cache evictions; None: they are estimated. `scaled`: replicas are started when requests
    wait, so an empty list makes no request late.
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
        if self.routing != DEFAULT_POLICY:
            check_policy(self.routing)
        if self.kv_events is not None:
            check_form(self.kv_events)
        if not (self.check_s > 0 and self.check_timeout_s > 0 and self.stall_s > 0):
            raise SettingError("fleet: expected check_s, check_timeout_s and stall_s above 0")


@dataclass(frozen=True)
class FleetEngineFactory:
    """Opens a `FleetEngine`. Reads the API key only when called."""

    config: FleetConfig

    def __call__(self) -> FleetEngine:
        from forebay.fleet.engine import FleetEngine  # imports numpy, which only tasks need

        return FleetEngine(self.config)


def check_policy(name: str) -> None:
    """Raises as `make_policy`."""
    from forebay.fleet.policies import make_policy

    make_policy(name)


def _listed(value: Any) -> Any:
    return () if value is None else (value,) if isinstance(value, str) else value


def _by_url(value: Any) -> Any:
    return {"url": value} if isinstance(value, str | list) else value


def _checked(check: Callable[[str], object], prefix: str) -> AfterValidator:
    def checked(text: str) -> str:
        try:
            check(text)
        except SettingError as error:
            raise wrong(str(error).removeprefix(prefix)) from None
        return text

    return AfterValidator(checked)


Urls = Annotated[tuple[HttpUrl, ...], BeforeValidator(_listed), Field(max_length=MAX_REPLICAS)]
ByUrl = BeforeValidator(_by_url)
Routing = Annotated[str, _checked(check_policy, "policy: ")]
KvEvents = Annotated[str, _checked(check_form, "kv_events: ")]
KubernetesService = Annotated[str, _checked(ServiceName.parse, "kubernetes: ")]
RayApplication = Annotated[str, _checked(RayPlace.parse, "ray: ")]


PLACES = ("url", "file", "dns", "kubernetes", "ray")


class ReplicaSource(Model):
    """Where replicas are: at most one of `url`, `file`, `dns`, `kubernetes` and `ray`."""

    url: Urls = Field((), description="Address of an OpenAI-compatible server, or a list of them.")
    file: LocalPath | None = Field(
        None,
        description="File with the addresses, one per line or a list in YAML or JSON; changes are noticed.",
    )
    dns: HttpUrl | None = Field(
        None, description="`http://NAME:PORT`: every address that the name has, now and later, is a replica."
    )
    kubernetes: KubernetesService | None = Field(
        None,
        description="`[NAMESPACE/]SERVICE[:PORT]`: every endpoint of the Service that is ready is a replica; "
        "the API server reports changes at once. PORT is the name or number of the pods' port.",
    )
    ray: RayApplication | None = Field(
        None,
        description="`http://HEAD:8265/NAME`: the address of a Ray cluster's dashboard, and a fleet that "
        "`forebay deploy ray` put there; every replica that runs is one.",
    )

    def given(self) -> tuple[str, ...]:
        return tuple(key for key in PLACES if getattr(self, key))

    def replicas(self) -> ReplicaList | None:
        """None if no key is set. Raises `SettingError`."""
        if self.file is not None:
            return FileReplicas(self.file)
        if self.dns is not None:
            return DnsReplicas(self.dns)
        if self.kubernetes is not None:
            return KubernetesReplicas(self.kubernetes)
        if self.ray is not None:
            return RayReplicas(self.ray)
        return FixedReplicas(self.url) if self.url else None


class PrefillSpec(ReplicaSource):
    """Servers that prefill prompts, and hand over their KV cache to those that decode: exactly one of `url`,
    `file`, `dns`, `kubernetes` and `ray`. A URL or a list of them may replace the mapping."""

    def model_post_init(self, context: Any, /) -> None:
        if len(self.given()) != 1:
            found = ", ".join(self.given()) or "none"
            raise wrong(f"expected one of 'url', 'file', 'dns', 'kubernetes' and 'ray', found {found}")
