"""The gateway's settings: one frozen tree, checked as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, Strict, model_validator

from forebay.documents import check_document, read_document
from forebay.errors import SettingError
from forebay.fields import (
    LocalPath,
    Model,
    NotNegativeFloat,
    PositiveFloat,
    PositiveInt,
    SecretField,
    Switch,
    refuse_conflicts,
)
from forebay.fleet.config import (
    DEFAULT_POLICY,
    PLACES,
    ByUrl,
    FleetConfig,
    KvEvents,
    PrefillSpec,
    ReplicaSource,
    Routing,
)
from forebay.fleet.discovery import FixedReplicas
from forebay.gateway.asgi import OURS_UP
from forebay.gateway.cors import ANY
from forebay.gateway.exchange import RelayRules
from forebay.gateway.keys import KeyLimits
from forebay.gateway.models import Alias

ModelName = Annotated[str, Field(min_length=1, max_length=500)]


def _weights(value: Any) -> Any:
    return {value: 1.0} if isinstance(value, str) else value


def _stands_for(value: Any) -> Any:
    return {"to": value} if isinstance(value, str) else value


Origin = Annotated[
    str, Field(pattern=r"^(\*|https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:.]+\](:[0-9]{1,5})?)$")
]


def _not_ours(name: str) -> str:
    if name.encode() in OURS_UP:
        raise ValueError("the gateway sets or keeps this header itself")
    return name


HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,253}$")]
FieldName = Annotated[str, Field(min_length=1, max_length=100)]
HeaderName = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,100}$"), AfterValidator(_not_ours)]


class EngineSpec(ReplicaSource):
    """The replicas that answer: exactly one of `url`, `file`, `dns`, `kubernetes` and `ray`."""

    prefill: Annotated[PrefillSpec | None, ByUrl] = Field(
        None,
        description="Servers that prefill prompts and hand over their KV cache; those above then decode. An "
        "address, a list of them, or another place, such as `{kubernetes: SERVICE}`. For vLLM with a KV "
        "connector. null: the same servers do both.",
    )
    api_key: SecretField | None = Field(
        None, description="The replicas' API key: `{env: NAME}` or `{file: PATH}`."
    )

    model: ModelName | None = Field(
        None,
        description="The only model to serve; null: all that the replicas list, each at those that list it.",
    )
    kv_events: KvEvents | None = Field(
        None,
        description="Address of each replica's KV cache events: `tcp://{host}:5557`, or "
        "`tcp://{host}:{port+200}` for an offset from the port of its URL; null: no subscription.",
    )


class KeySpec(Model):
    """One API key and its limits; null means no limit."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = Field(
        description="Name of the key in metrics and logs; clients do not send it."
    )
    key: SecretField = Field(description="The key: `{env: NAME}` or `{file: PATH}`.")
    cache_group: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] | None = Field(
        None,
        description="Keys of one group share the engines' prefix cache. null: this key shares it with no "
        "other.",
    )
    requests_per_s: PositiveFloat | None = Field(None, description="Requests a second, in the long run.")
    burst: PositiveInt = Field(10, description="Requests that may come at once after a pause.")
    in_flight: PositiveInt | None = Field(None, description="Requests at a time.")
    tokens_per_min: PositiveInt | None = Field(
        None,
        description="Tokens a minute. A request first takes its prompt's tokens (estimated) and the most "
        "that it may generate; unused ones are returned.",
    )
    tokens_per_day: PositiveInt | None = Field(
        None, description="Tokens a day (UTC), counted from the start of the gateway."
    )

    def limits(self) -> KeyLimits:
        return KeyLimits(
            requests_per_s=_or_inf(self.requests_per_s),
            burst=self.burst,
            in_flight=_or_inf(self.in_flight),
            tokens_per_min=_or_inf(self.tokens_per_min),
            tokens_per_day=_or_inf(self.tokens_per_day),
        )


class AliasSpec(Model):
    """An alias for models. The name of one model is enough."""

    to: Annotated[dict[ModelName, PositiveFloat], BeforeValidator(_weights), Field(min_length=1)] = Field(
        description="The model that it stands for, or several with the weight of each: "
        "`{stable: 95, canary: 5}`. Requests of one `prompt_cache_key` or `user` go to the same one."
    )
    fallback: ModelName | None = Field(
        None, description="Model for requests that no replica of the chosen one can take."
    )

    def alias(self) -> Alias:
        return Alias(self.to, self.fallback)


class LimitsSpec(Model):
    """Limits for every client."""

    max_body_bytes: PositiveInt = Field(
        32 << 20, description="Largest body; more gets a 413. Images and recordings count as sent."
    )
    max_held_bytes: PositiveInt = Field(
        512 << 20, description="Bodies of all requests at a time; one beyond gets a 503."
    )
    max_header_bytes: PositiveInt = Field(32 << 10, description="Request line and headers; more gets a 431.")
    max_headers: PositiveInt = Field(100, description="Number of headers; more gets a 431.")
    max_json_depth: Annotated[int, Strict(), Field(gt=0, le=250)] = Field(
        64, description="Nesting of lists and objects."
    )
    header_s: PositiveFloat = Field(10.0, description="Time to receive request line and headers; then 408.")
    body_s: PositiveFloat = Field(120.0, description="Time to receive the body; then 408.")
    request_s: PositiveFloat = Field(
        3600.0, description="Time for the whole answer, reasoning included; then it is cut off."
    )
    unread_s: PositiveFloat = Field(
        120.0,
        description="How long a client may leave an answer unread; then it is cut off. `header_s` if it has "
        "shown no key.",
    )
    idle_s: PositiveInt = Field(60, description="How long a connection is kept between requests.")
    connections: PositiveInt = Field(
        4096,
        description="Connections at a time. For one more the oldest is closed that has shown no key, "
        "or else that has no request; if none is left, the new one.",
    )
    connections_per_client: PositiveInt = Field(
        1024,
        description="Connections at a time from one address (of IPv6: from one /64 network), in the same "
        "way.",
    )
    in_flight: PositiveInt = Field(2048, description="Requests at a time; one more gets a 503.")


RULES = RelayRules()


class RelaySpec(Model):
    """How a request gets to a replica, and when another one is tried."""

    attempts: PositiveInt = Field(
        RULES.attempts, description="Most replicas that a request is sent to before its first byte."
    )
    connect_s: PositiveFloat = Field(RULES.connect_s, description="Time to connect to a replica.")
    first_byte_s: PositiveFloat = Field(
        RULES.first_byte_s,
        description="Time to the start of a streamed answer; then another replica is used.",
    )
    place_s: PositiveFloat | None = Field(
        None,
        description="How long a request waits for a replica with room; then 503. null: as long as a request "
        "may take (`limits.request_s`), or until its client hangs up.",
    )
    absent_s: PositiveFloat | None = Field(
        RULES.absent_s,
        description="How long a request waits if no replica is up at all; then 503. null: as `place_s: "
        "null`, for a fleet that is scaled to zero and from zero; `/health` is 200 without a replica then.",
    )

    fields: tuple[FieldName, ...] = Field(
        (),
        description="Further fields of a request's body that clients may send to replicas, besides those of "
        "OpenAI's, Anthropic's and vLLM's APIs that concern one request alone.",
    )
    headers: tuple[HeaderName, ...] = Field(
        (),
        description="Further headers that clients may send to replicas, besides `Accept`, `Content-Type`, "
        "`anthropic-version`, `anthropic-beta` and `openai-beta`.",
    )

    cache_salt: Switch = Field(
        RULES.cache_salt,
        description="Whether requests of a key get a `cache_salt`, so that no other key can find out by the "
        "prefix cache what was asked. false: for engines that reject this field.",
    )

    def rules(self) -> RelayRules:
        return RelayRules(
            **{**dict(self), "place_s": _or_inf(self.place_s), "absent_s": _or_inf(self.absent_s)}
        )


class DrainSpec(Model):
    """What happens on SIGTERM."""

    notice_s: NotNegativeFloat = Field(
        0.0, description="Shortest time that `/health` reports `draining` before the port closes."
    )
    grace_s: NotNegativeFloat = Field(300.0, description="How long answers in flight may take to end.")


class TlsSpec(Model):
    """HTTPS instead of HTTP."""

    certificate: LocalPath = Field(description="File with the certificate and its chain (PEM).")
    key: LocalPath = Field(description="File with its private key (PEM), without a password.")


class MonitoringSpec(Model):
    """Who may see `/health` and `/metrics`; by default everybody, without names of keys."""

    key: SecretField | None = Field(
        None, description="Key that these two require: `{env: NAME}` or `{file: PATH}`."
    )
    port: Annotated[int, Strict(), Field(ge=1, le=65535)] | None = Field(
        None, description="Separate port for both; they are on no other then."
    )
    host: Annotated[str, Field(min_length=1, max_length=255)] = Field(
        "127.0.0.1", description="Address of that port."
    )

    @property
    def closed(self) -> bool:
        return self.key is not None or self.port is not None


class GatewaySpec(Model):
    """A gateway."""

    engine: Annotated[EngineSpec, ByUrl] = Field(
        default_factory=EngineSpec, description="The replicas; a URL, or a list of URLs, is enough."
    )
    routing: Routing = Field(
        DEFAULT_POLICY,
        description="How requests are spread over the replicas; see docs/fleet.md.",
    )
    keys: tuple[KeySpec, ...] = Field((), description="API keys; none: everybody may call.")
    models: dict[ModelName, Annotated[AliasSpec, BeforeValidator(_stands_for)]] = Field(
        default_factory=dict, description="Aliases: other names for models, with weights and fallbacks."
    )
    limits: LimitsSpec = Field(default_factory=LimitsSpec, description="Bounds for every client.")
    relay: RelaySpec = Field(default_factory=RelaySpec, description="The way to a replica.")
    drain: DrainSpec = Field(default_factory=DrainSpec, description="What happens on SIGTERM.")
    cors: Annotated[tuple[Origin, ...], Field(max_length=1000)] = Field(
        (),
        description="Web pages whose scripts may call the gateway, by origin: `https://app.example.com`; "
        "`*`: all of them, which needs keys.",
    )
    hosts: Annotated[tuple[HostName, ...], Field(max_length=1000)] = Field(
        (),
        description="Names in `Host` by which requests without a key may come, besides `localhost` and IP "
        "addresses; none: any name, but not at loopback addresses.",
    )
    access_log: LocalPath | None = Field(
        None, description="File for a line of JSON per request, without content; null: none is written."
    )
    tls: TlsSpec | None = Field(None, description="HTTPS; null: plain HTTP.")
    monitoring: MonitoringSpec = Field(
        default_factory=MonitoringSpec, description="Who may see `/health` and `/metrics`."
    )
    opentelemetry: bool = Field(
        False, description="Send traces and metrics by OpenTelemetry as the `OTEL_*` variables configure."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> GatewaySpec:
        refuse_conflicts(self._problems())
        return self

    def fleet(self) -> FleetConfig:
        """The fleet. Raises `SettingError` for an invalid replica."""
        engine = self.engine
        key = engine.api_key.ref() if engine.api_key is not None else None
        return FleetConfig(
            engine.replicas() or FixedReplicas(()),
            model=engine.model,
            api_key=key,
            routing=self.routing,
            kv_events=engine.kv_events,
        )

    def prefill_fleet(self) -> FleetConfig | None:
        """The fleet that only prefills, if any."""
        prefill = self.engine.prefill
        replicas = None if prefill is None else prefill.replicas()
        return None if replicas is None else replace(self.fleet(), replicas=replicas)

    def _problems(self) -> Iterator[tuple[str, str]]:
        engine = self.engine
        given = engine.given()
        if len(given) != 1:
            found = " and ".join(given) or "none"
            yield "engine", f"expected exactly one of url, file, dns, kubernetes and ray; found {found}"
        names = [key.name for key in self.keys]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield "keys", f"expected names that differ, found {name!r} more than once"
        if {"anyone", "unknown", "known"} & set(names):
            yield "keys", "expected other names than 'anyone', 'known' and 'unknown', which metrics use"
        if ANY in self.cors and not self.keys:
            yield "cors", "expected keys with '*', or the origins of your pages: any page could call"
        for name, alias in self.models.items():
            for one in (*alias.to, alias.fallback):
                if one in self.models and one != name:
                    yield f"models.{name}", f"expected models that replicas serve, found the alias {one!r}"


def load_gateway(
    path: str | Path | None, engines: tuple[str, ...] = (), prefill: tuple[str, ...] = ()
) -> GatewaySpec:
    """Read the gateway's settings at `path`, if given; blocks on the file system.

    `engines` replace all replicas in the file; `prefill` only its prefill ones. Raises `SettingError` with
    one line per mistake: `file:line: key.path: what was expected, what was found`.
    """
    value, lines = read_document(path, "gateway") if path is not None else ({}, {})
    name = "--engine" if path is None else str(path)
    if path is None and not engines:
        raise SettingError("the gateway needs replicas: --engine URL, or a file with `engine:` by --config")
    if isinstance(value, dict):
        value = {**value, **_with_replicas(value.get("engine"), engines, prefill)}
    base = Path(path).resolve().parent if path is not None else None
    return check_document(GatewaySpec, value, what="gateway", base=base, name=name, lines=lines)


def _with_replicas(engine: Any, engines: tuple[str, ...], prefill: tuple[str, ...]) -> dict[str, Any]:
    if not (engines or prefill):
        return {}
    found = engine if isinstance(engine, dict) else {} if engine is None else {"url": engine}
    if engines:
        found = {key: found[key] for key in found if key not in (*PLACES, "prefill")} | {"url": list(engines)}
    return {"engine": found | ({"prefill": list(prefill)} if prefill else {})}


def _or_inf(limit: float | None) -> float:
    return math.inf if limit is None else limit
