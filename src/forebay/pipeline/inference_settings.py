"""Settings of a pipeline's engine calls: prompts, schema, sampling, retries, journal and scaling."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, Strict, ValidationInfo

from forebay.documents import suggestion
from forebay.engine.answer import AnswerCheck
from forebay.engine.inference_gateway import PickerHeaders
from forebay.engine.journal import JournalConfig
from forebay.engine.prompt import FieldTemplate, PromptTemplate
from forebay.engine.retry import RetryPolicy
from forebay.errors import SettingError
from forebay.fields import (
    AnyInt,
    LocalPath,
    Model,
    NotNegativeFloat,
    PositiveFloat,
    PositiveInt,
    SecretField,
    Switch,
    wrong,
)
from forebay.fleet.autoscale.base import (
    DEFAULT_CLASS,
    MAX_REPLICAS,
    ReplicaSpeed,
    ScalingLimits,
    ServiceClass,
    Timings,
    replicas_for,
)
from forebay.fleet.autoscale.demand import FRESH_S
from forebay.fleet.autoscale.settings import DEFAULT_SCALING, SCALING_POLICIES, ScalingSettings
from forebay.fleet.config import ByUrl, KvEvents, PrefillSpec, ReplicaSource, Urls
from forebay.records import Sampling
from forebay.settings import SecretRef


def _schema(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    try:
        AnswerCheck(value)
    except SettingError as error:
        raise wrong(f"expected a JSON schema; {error}") from None
    return value


def _prompt(text: str) -> str:
    return _compiles(lambda: PromptTemplate(text), text)


def _field_template(text: str, info: ValidationInfo) -> str:
    return _compiles(lambda: FieldTemplate(text, what=info.field_name or "template"), text)


def _compiles(compile_: Any, text: str) -> str:
    try:
        compile_()
    except SettingError as error:
        raise wrong(f"expected a template; {error}") from None
    return text


ObjectiveName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
FairnessId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$")]
PromptText = Annotated[str, Field(min_length=1), AfterValidator(_prompt)]
FieldText = Annotated[str, Field(min_length=1), AfterValidator(_field_template)]


class MessageSpec(Model):
    """One message of the prompt."""

    role: Literal["system", "user", "assistant"] = Field(description="Role of the message.")
    content: PromptText = Field(description="Template of the message.")


class OutputSpec(Model):
    """The form of an answer."""

    json_schema: Annotated[dict[str, JsonValue], AfterValidator(_schema)] = Field(
        alias="schema",
        description="JSON schema (draft 2020-12) that answers must satisfy; it is also sent to the engine. "
        "Patterns are RE2's.",
    )


class InferenceGatewaySpec(Model):
    """An inference gateway of Kubernetes' Gateway API at `engine.url`: its endpoint picker chooses the
    replica. Forebay does not route, and each request has headers with its urgency."""

    objectives: Annotated[dict[ObjectiveName, AnyInt], Field(max_length=100)] = Field(
        {},
        description="InferenceObjectives of the pool, each with the `priority` from which on requests have "
        "it: `{urgent: 0, batch: 10}`; lower ones have the first. None: the picker treats all the same.",
    )
    fairness_id: FairnessId | None = Field(
        None, description="Name under which the picker shares capacity among its callers; null: none is sent."
    )

    def model_post_init(self, context: Any, /) -> None:
        if len(set(self.objectives.values())) < len(self.objectives):
            raise wrong("expected 'objectives' with priorities that differ")

    def headers(self) -> PickerHeaders:
        return PickerHeaders(tuple(self.objectives.items()), self.fairness_id)


class PipelineEngineSpec(ReplicaSource):
    """The engine that answers. A URL or a list of URLs can replace this mapping."""

    url: Urls = Field(
        (),
        description="Address of an OpenAI-compatible server, or a list of them; null: the local engine that "
        "Forebay starts, if none of `file`, `dns`, `kubernetes` and `ray` is given.",
        json_schema_extra={"derived": "`null`"},
    )
    prefill: Annotated[PrefillSpec | None, ByUrl] = Field(
        None,
        description="Servers that prefill prompts and hand over their KV cache; those above then decode. An "
        "address, a list of them, or another place, such as `{kubernetes: SERVICE}`. For vLLM with a KV "
        "connector; see `forebay plan`. null: the same servers do both.",
    )
    model: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(
        None, description="Name of the model; null: the only one that the engine serves."
    )
    api: Literal["chat", "completions"] = Field(
        "chat", description="Which endpoint of the OpenAI protocol is used."
    )
    priority: Switch = Field(
        False,
        description="Send each request's priority along; for servers that schedule by it "
        "(vLLM with `--scheduling-policy priority`).",
    )
    inference_gateway: InferenceGatewaySpec | None = Field(
        None,
        description="Headers of each request for an inference gateway at `url`; null: `url` names replicas, "
        "among which Forebay chooses.",
    )
    kv_events: KvEvents | None = Field(
        None,
        description="Where each replica publishes the events of its KV cache: `tcp://{host}:5557`, or "
        "`tcp://{host}:{port+200}` for a port at this offset from that of its URL; null: no subscription.",
    )
    api_key: SecretField | None = Field(
        None, description="Where the API key is: `{env: NAME}` or `{file: PATH}`; never the key itself."
    )

    def model_post_init(self, context: Any, /) -> None:
        given = self.given()
        if len(given) > 1:
            raise wrong("expected one of 'url', 'file', 'dns', 'kubernetes' and 'ray', found several")
        if self.prefill is not None and not given:
            raise wrong(
                "expected 'prefill' together with the servers that decode ('url', 'file', …), found it alone"
            )
        if self.inference_gateway is not None:
            if len(self.url) != 1:
                raise wrong("expected one 'url' with 'inference_gateway', the gateway's")
            for name in ("prefill", "kv_events"):
                if getattr(self, name):
                    raise wrong(f"expected no {name!r} with 'inference_gateway', which chooses the replica")

    def secret(self) -> SecretRef | None:
        return self.api_key.ref() if self.api_key is not None else None


class SamplingSpec(Model):
    """How the engine picks tokens."""

    max_tokens: PositiveInt = Field(128, description="Longest answer, in tokens.")
    temperature: NotNegativeFloat = Field(0.0, description="0: always the likeliest token.")
    top_p: Annotated[float, Strict(), Field(gt=0, le=1)] | None = Field(
        None, description="Choose among the likeliest tokens that together have this probability."
    )
    seed: AnyInt | None = Field(None, description="Seed of the engine's random numbers.")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="Texts that end the answer."
    )
    extra: dict[str, JsonValue] = Field(
        default_factory=dict, description="More keys of the request, passed on as they are (`ignore_eos`)."
    )

    def value(self) -> Sampling:
        return Sampling(**dict(self))


RETRY = RetryPolicy()


class RetrySpec(Model):
    """When a failed call is retried. Only failures that may pass are, and never beyond the deadline."""

    max_attempts: PositiveInt = Field(
        RETRY.max_attempts,
        description="Calls per record after failures that may lie in the record, the first one counted. "
        "An engine that is out of reach or overloaded is tried until the deadline.",
    )
    max_invalid_answers: PositiveInt = Field(
        RETRY.max_invalid_answers,
        description="Calls per record whose answers broke the schema or were empty.",
    )
    base_s: PositiveFloat = Field(RETRY.base_s, description="Longest wait before the second call.")
    factor: Annotated[float, Strict(), Field(ge=1)] = Field(
        RETRY.factor, description="How much longer each wait may be than the one before."
    )
    max_backoff_s: PositiveFloat = Field(RETRY.max_backoff_s, description="Longest wait of all.")

    def policy(self) -> RetryPolicy:
        return RetryPolicy(**dict(self))


class JournalSpec(Model):
    """Answers on disk: the same request gets the same answer without a second call."""

    path: LocalPath = Field(description="SQLite file on this machine; relative to the pipeline file.")
    max_entries: PositiveInt = Field(1_000_000, description="Maximum answers; the oldest are removed first.")
    max_mb: PositiveInt = Field(1024, description="Maximum size in MB (10^6 bytes); the oldest go first.")
    max_age_s: PositiveFloat | None = Field(
        604_800.0, description="Answers older than this are removed; null: never."
    )

    def config(self) -> JournalConfig:
        return JournalConfig(
            path=Path(self.path),
            max_entries=self.max_entries,
            max_bytes=self.max_mb * 1_000_000,
            max_age_s=self.max_age_s,
        )


CLASS = re.compile(r"[a-z0-9_-]{1,40}")
MAX_CLASSES = 8
RANGE = re.compile(r"([0-9]{1,5})(?:\.\.([0-9]{1,5}))?")


def _policy(name: str) -> str:
    names = SCALING_POLICIES.names()
    if name not in names:
        raise wrong(f"expected one of {', '.join(names)}; found {name[:80]!r}{suggestion(name, names)}")
    return name


def _class(name: str) -> str:
    if not CLASS.fullmatch(name):
        raise wrong(f"expected a name of a-z, 0-9, '-' and '_', at most 40 of them; found {name[:80]!r}")
    if name == DEFAULT_CLASS:
        raise wrong(f"expected another name than {DEFAULT_CLASS!r}: scaling.slo_s is that class's")
    return name


class ClassesSpec(Model):
    """Records whose answers are due sooner or later than others."""

    of: FieldText = Field(
        description="Template of the name of an event's class. An event for which it gives no name of "
        "`slo_s` is of the class `default`, with `scaling.slo_s`."
    )
    slo_s: Annotated[
        dict[Annotated[str, AfterValidator(_class)], Annotated[PositiveFloat, Field(le=1e6)]],
        Field(min_length=1, max_length=MAX_CLASSES),
    ] = Field(description="For each class, how long its records may wait until their answers begin.")


class PipelineScalingSpec(Model):
    """How many replicas answer, and by which policy."""

    policy: Annotated[str, AfterValidator(_policy)] = Field(
        DEFAULT_SCALING, description="Scaling policy; docs/autoscaling.md lists them."
    )
    min: Annotated[int, Strict(), Field(ge=0, le=MAX_REPLICAS)] = Field(
        0, description="Fewest replicas. With 0, none runs while nothing waits."
    )
    max: Annotated[int, Strict(), Field(ge=1, le=MAX_REPLICAS)] = Field(description="Most replicas.")
    slo_s: PositiveFloat = Field(
        60.0, le=1e6, description="How long a record may wait until its answer begins."
    )
    classes: ClassesSpec | None = Field(
        None,
        description="Classes of service, for which that is another time: what is due first is sent first; "
        "null: all records are alike.",
    )
    boot_s: PositiveFloat = Field(
        60.0, le=1e6, description="How long a replica takes to start; learned once one has started."
    )
    warm_up_s: NotNegativeFloat = Field(
        0.0, le=1e6, description="How long a started replica is still slow: it is started earlier."
    )
    drain_s: NotNegativeFloat = Field(
        10.0,
        le=1e6,
        description="How long a replica takes to finish its requests. One that is not needed stays for as "
        "long as a start and this take.",
    )
    budget_per_hour: PositiveFloat | None = Field(
        None,
        le=1e12,
        description="Most money per hour, with `price_per_hour`: no more replicas than it pays for; null: "
        "as many as `max`.",
    )
    price_per_hour: PositiveFloat | None = Field(
        None, le=1e12, description="What one replica costs per hour, in the same currency."
    )
    every_s: PositiveFloat = Field(5.0, ge=0.5, le=3600, description="Time from one decision to the next.")
    prompt_tokens_per_s: PositiveFloat = Field(
        5000.0,
        description="Tokens of prompts that a busy replica takes in, if it does nothing else. Corrected by "
        "what is seen, with `answer_tokens_per_s`, in the same ratio.",
    )
    answer_tokens_per_s: PositiveFloat = Field(
        500.0, description="Tokens of answers that a busy replica gives, of all its requests together."
    )
    requests_per_replica: PositiveInt = Field(
        128, le=100_000, description="Requests that one replica runs at once."
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.min > self.max:
            yield "scaling.min", f"expected at most scaling.max ({self.max}), found {self.min}"
        budget, price = self.budget_per_hour, self.price_per_hour
        if budget is None and price is not None:
            yield "scaling.price_per_hour", "expected scaling.budget_per_hour too, found none"
        if price is None and budget is not None:
            yield "scaling.budget_per_hour", "expected scaling.price_per_hour too, found none"
        if budget is not None and price is not None and replicas_for(budget, price) < max(self.min, 1):
            yield (
                "scaling.budget_per_hour",
                f"{budget:g} pays for {replicas_for(budget, price)} replicas at {price:g} each, and at least "
                f"{max(self.min, 1)} are required; raise it, or lower scaling.min",
            )

    @property
    def limits(self) -> ScalingLimits:
        return ScalingLimits(
            self.min, self.max, self.budget_per_hour, self.price_per_hour, stale_after_s=FRESH_S
        )

    def settings(self, answer_tokens: int) -> ScalingSettings:
        """Until there are answers, their expected length is half of `answer_tokens`, the maximum."""
        others = {} if self.classes is None else self.classes.slo_s
        return ScalingSettings(
            limits=self.limits,
            policy=self.policy,
            slo_s=self.slo_s,
            timings=Timings(self.boot_s, self.warm_up_s, self.drain_s, self.every_s),
            speed=ReplicaSpeed(
                1 / self.prompt_tokens_per_s, 1 / self.answer_tokens_per_s, self.requests_per_replica
            ),
            answer_tokens=max(answer_tokens / 2, 1.0),
            other_classes=tuple(ServiceClass(name, slo_s) for name, slo_s in others.items()),
        )


def replicas_settings(text: str) -> list[str]:
    """Convert `--replicas 0..2`, or a fixed number, to settings for `--set`. Raises `SettingError`."""
    found = RANGE.fullmatch(text.strip())
    if found is None:
        raise SettingError(f"--replicas: expected a number or a range such as 0..2, found {text[:80]!r}")
    least, most = int(found[1]), int(found[2] or found[1])
    if least > most:
        raise SettingError(
            f"--replicas: expected the smaller number first, found {text}: write {most}..{least}"
        )
    if most == 0:
        raise SettingError("--replicas: expected at least one replica at most, found 0")
    return [f"scaling.min={least}", f"scaling.max={most}"]
