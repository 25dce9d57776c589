"""A pipeline file as one frozen tree of settings, checked as a whole.

`load.py` turns all mistakes into one `SettingError`; pydantic's `ValidationError` has them without values.
"""

from __future__ import annotations

import posixpath
import re
from itertools import combinations
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Strict, model_validator

from forebay.apps import APPLICATIONS, own_applications
from forebay.apps.base import ApplicationSettings
from forebay.connectors import DeadLetterSink, Sink, Source
from forebay.connectors.base import SinkSettings
from forebay.connectors.files.settings import JsonlSink
from forebay.connectors.kafka.settings import KafkaSink
from forebay.engine.prompt import FieldTemplate, PromptTemplate
from forebay.fields import (
    MAX_S,
    Folder,
    Model,
    NotNegativeFloat,
    OneOf,
    PositiveFloat,
    PositiveInt,
    Scalar,
    Switch,
    refuse_conflicts,
    wrong,
)
from forebay.fleet.config import DEFAULT_POLICY, ByUrl, Routing
from forebay.flink.shards import MAX_PARALLELISM
from forebay.pipeline.cost_settings import BudgetSpec, ModelName, PricesSpec, cost_problems
from forebay.pipeline.flink_options import close_option, is_option, owned
from forebay.pipeline.inference_settings import (
    FieldText,
    JournalSpec,
    MessageSpec,
    OutputSpec,
    PipelineEngineSpec,
    PipelineScalingSpec,
    PromptText,
    RetrySpec,
    SamplingSpec,
)
from forebay.records import Message


def _given(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _assigns(application: object) -> bool:
    kind = _given(application, "type")
    return isinstance(kind, str) and kind in APPLICATIONS.own and APPLICATIONS.own_one(kind).assigns


def _name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", value):
        raise wrong(f"expected at most 63 of a-z, 0-9 and '-', not '-' first; found {value[:80]!r}")
    return value


def _flink_key(key: str) -> str:
    instead = owned(key)
    if instead is not None:
        raise wrong(f"expected {instead}; it cannot be set here")
    if not is_option(key):
        raise wrong(f"expected an option of Flink, found a name that Flink does not have{close_option(key)}")
    return key


Application = Annotated[
    ApplicationSettings, OneOf(ApplicationSettings, APPLICATIONS.names, APPLICATIONS.find, own_applications)
]


class EventTimeSpec(Model):
    """Watermarks: the progress of event time."""

    out_of_orderness_s: NotNegativeFloat = Field(
        5.0, le=MAX_S, description="How far an event may be behind a newer one."
    )


class CheckpointSpec(Model):
    """Where and how often the job's state is saved."""

    dir: Folder = Field(
        description="Directory, relative to the pipeline file, or `s3://bucket/prefix`.",
        json_schema_extra={"derived": "`.forebay/<name>/checkpoints`"},
    )
    interval_s: Annotated[float, Strict(), Field(ge=0.01, le=MAX_S)] = Field(
        5.0,
        description="Longest time from one checkpoint to the next while there is something to commit. "
        "Results are committed sooner if that is cheap.",
    )
    timeout_s: PositiveFloat = Field(
        600.0, le=MAX_S, description="A checkpoint that takes longer is given up."
    )


class PipelineSpec(Model):
    """A whole pipeline: events, a prompt for each, an engine, and the sink of the answers."""

    name: Annotated[str, AfterValidator(_name)] = Field(
        description="Name of the job and of its state: a-z, 0-9 and '-', at most 63 characters."
    )
    source: Source = Field(description="Where events come from.")
    prompt: PromptText | None = Field(
        None, description="Template of the prompt, sent as one user message. Either this or `messages`."
    )
    messages: Annotated[tuple[MessageSpec, ...], Field(max_length=64)] = Field(
        (), description="Templates of the messages of a chat. Either this or `prompt`."
    )
    special_tokens: Literal["escape", "keep"] = Field(
        "escape",
        description="`escape`: text of a record cannot form a model's special tokens, such as "
        "`<|im_end|>`: a blank is put behind `<` and `[` where one could begin. `keep`: records go into the "
        "prompt as they are; for records of an author who is trusted.",
    )
    application: Application | None = Field(
        None, description="A stateful application instead of one question per event; it writes the prompts."
    )
    output: OutputSpec | None = Field(None, description="Form of the answer; null: free text.")
    engine: Annotated[PipelineEngineSpec, ByUrl] = Field(
        PipelineEngineSpec(), description="The engine that answers; a URL, or a list of URLs, is enough."
    )
    routing: Routing = Field(
        DEFAULT_POLICY, description="Routing policy for several replicas; docs/fleet.md lists them."
    )
    scaling: PipelineScalingSpec | None = Field(
        None,
        description="How many replicas answer. Local ones are started and stopped by the run; of others the "
        "wanted number is a metric, by which a cluster scales; null: a fixed number.",
    )
    sampling: SamplingSpec = Field(SamplingSpec(), description="How the engine picks tokens.")
    key: FieldText | None = Field(
        None,
        description="Template of an event's key, by which order and state are kept; null: no keys. "
        "An event has no key if a field of the template is missing or null, or its text is empty.",
    )
    id: FieldText | None = Field(
        None,
        description="Template of an event's id, different for each event; null: its position in the source, "
        "or a hash of its bytes if the source has no positions.",
    )
    priority: FieldText | None = Field(
        None,
        description="Template of an event's priority, a whole number: of requests that are due at the same "
        "time, the lowest goes first; null: all are alike.",
    )
    answer_tokens: FieldText | None = Field(
        None,
        description="Template of the maximum tokens of an event's answer, a whole number; null: "
        "`sampling.max_tokens` for all.",
    )
    capacity: PositiveInt = Field(
        64,
        le=100_000,
        description="Maximum requests in flight per subtask; admission decides how many are at the engine.",
    )
    shards: PositiveInt = Field(8, le=MAX_PARALLELISM, description="Flink keys that state is spread over.")
    timeout_s: PositiveFloat = Field(
        60.0,
        description="Maximum time without progress on a call; longer if such calls were seen to take longer.",
    )
    deadline_s: PositiveFloat = Field(
        300.0,
        description="Maximum time for one record from its first call, including all retries and pauses.",
    )
    retry: RetrySpec = Field(RetrySpec(), description="Retries of failed calls.")
    ordering: Literal["unordered", "key"] = Field(
        "unordered",
        description="`unordered`: answers leave as they come; `key`: in the events' order per key.",
    )
    prices: Annotated[dict[ModelName, PricesSpec], Field(min_length=1, max_length=100)] | None = Field(
        None,
        description="Prices by the model's exact name, or `'*'` for any: results, dead letters and metrics "
        "then have the cost of their calls; null: no costs.",
    )
    budget: BudgetSpec | None = Field(None, description="The most that calls may cost; null: no limit.")
    journal: JournalSpec | None = Field(None, description="Answers on disk; null: no journal.")
    sink: Sink = Field(description="Where results go.")
    dead_letters: DeadLetterSink = Field(
        description="Where failed records go; `<name>-dead-letters` if the sink has no path.",
        json_schema_extra={"derived": "`<sink.path>-dead-letters`"},
    )
    assignments: DeadLetterSink | None = Field(
        None,
        description="Where the topic of each text goes, of an application that assigns texts (`topics`); "
        "null: nowhere. Without the key, such an application writes JSON lines to "
        "`<sink.path>-assignments` if the sink has a path.",
    )
    event_time: EventTimeSpec | None = Field(
        None, description="Watermarks; null: no event time. Needs a source with times."
    )
    timeline: Switch = Field(
        False,
        description="Results contain when their event was read, accepted, sent, got its first token, was "
        "answered and left the operator: `timeline`, in wall-clock microseconds since 1970.",
    )
    opentelemetry: Switch = Field(
        False, description="Send traces by OpenTelemetry as the `OTEL_*` variables configure."
    )
    parallelism: PositiveInt = Field(
        1, le=MAX_PARALLELISM, description="Subtasks of the job; at most `shards`."
    )
    task_managers: PositiveInt = Field(
        1,
        le=MAX_PARALLELISM,
        description="Processes that the subtasks are spread over, each with a JVM and a Python of its own; "
        "at most `parallelism`. 1: all subtasks share Flink's JVM, and run Python one at a time.",
    )
    checkpoint: CheckpointSpec = Field(
        description="Where and how often state is saved.", json_schema_extra={"derived": "as below"}
    )
    flink: dict[Annotated[str, AfterValidator(_flink_key)], Scalar] = Field(
        default_factory=dict,
        description="Options of Flink, passed on unchanged; they override Forebay's own. Rejected are those "
        "that control where state is, what is resumed and how the job is monitored, and names that Flink "
        "does not have. Any name is accepted below `metrics.reporter`, `state.backend` and other prefixes "
        "of plug-ins.",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_places(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        name = data.get("name") if isinstance(data.get("name"), str) else "pipeline"
        checkpoint = data.get("checkpoint") or {}
        if isinstance(checkpoint, dict):
            data["checkpoint"] = {"dir": f".forebay/{name}/checkpoints", **checkpoint}
        place = _given(data.get("sink"), "path")
        stem = (place.rstrip("/") if isinstance(place, str) else "") or name
        if data.get("dead_letters") is None:
            data["dead_letters"] = {"type": "jsonl", "path": f"{stem}-dead-letters"}
        if isinstance(place, str) and _assigns(data.get("application")):
            data.setdefault("assignments", {"type": "jsonl", "path": f"{stem}-assignments"})
        return data

    @model_validator(mode="after")
    def _fits_together(self) -> PipelineSpec:
        refuse_conflicts(self._problems())
        return self

    def _problems(self) -> Any:
        source = self.source
        if self.application is not None:
            yield from self._problems_of_application(self.application)
        elif self.prompt is None and not self.messages:
            yield "prompt", "expected a template here or under 'messages', found neither"
        if self.prompt is not None and self.messages:
            yield "messages", "expected either 'prompt' or 'messages', found both"
        if self.messages and self.engine.api == "completions":
            yield "messages", "expected 'prompt' with engine.api completions, found messages"
        if self.parallelism > self.shards:
            yield "parallelism", f"expected at most shards ({self.shards}), found {self.parallelism}"
        if self.task_managers > self.parallelism:
            yield (
                "task_managers",
                f"expected at most parallelism ({self.parallelism}), found {self.task_managers}",
            )
        if self.timeout_s > self.deadline_s:
            yield "timeout_s", f"expected at most deadline_s ({self.deadline_s:g}), found {self.timeout_s:g}"
        if self.retry.max_backoff_s < self.retry.base_s:
            yield "retry.max_backoff_s", f"expected at least base_s, found {self.retry.max_backoff_s:g}"
        if self.scaling is not None:
            yield from self.scaling.problems()
        if self.engine.inference_gateway is not None:
            if self.scaling is not None:
                yield (
                    "scaling",
                    "expected none with engine.inference_gateway, behind which no replica is seen",
                )
            if self.routing != DEFAULT_POLICY:
                yield "routing", "expected none with engine.inference_gateway, which chooses the replica"
        if self.ordering == "key" and self.key is None:
            yield "ordering", "expected a 'key' template with ordering: key, found none"
        yield from cost_problems(self, self.engine.model)
        yield from source.problems(self)
        if self.assignments is not None and not (self.application and self.application.assigns):
            yield "assignments", "expected none without an application that assigns texts: topics"
        written = self.written()
        for (key, path), (other, above) in combinations(written.items(), 2):
            if _within(path, above) or _within(above, path):
                yield other, f"expected a directory apart from {key}, found one within the other"
        read = getattr(source, "path", None)
        if isinstance(read, str):
            for key, path in written.items():
                if _within(path, read):
                    yield key, "expected a directory apart from source.path, found the same or one within it"
            state = {"checkpoint.dir": self.checkpoint.dir}
            if self.journal is not None:
                state["journal.path"] = self.journal.path
            for key, path in state.items():
                if _read_with(path, read):
                    yield key, "expected a place apart from source.path, found one within what is read"

    def _problems_of_application(self, application: ApplicationSettings) -> Any:
        for name in ("prompt", "messages", "output", "answer_tokens"):
            if getattr(self, name):
                yield name, "expected none with 'application', which writes the prompts itself"
        if self.engine.api == "completions":
            yield "engine.api", "expected chat with 'application', found completions"
        yield from application.problems(self)
        if self.ordering != "unordered":
            yield "ordering", "expected none with 'application', which keeps the order of each key"

    def sinks(self) -> dict[str, SinkSettings]:
        sinks = {"sink": self.sink, "dead_letters": self.dead_letters}
        return sinks if self.assignments is None else {**sinks, "assignments": self.assignments}

    def written(self) -> dict[str, str]:
        found = {f"{key}.path": sink.directory() for key, sink in self.sinks().items()}
        return {key: path for key, path in found.items() if path is not None}

    def directories(self) -> dict[str, str]:
        sinks = self.sinks().items()
        return {f"{key}.path": sink.path for key, sink in sinks if isinstance(sink, JsonlSink)}

    def topics(self) -> dict[str, KafkaSink]:
        return {key: sink for key, sink in self.sinks().items() if isinstance(sink, KafkaSink)}

    def prompt_template(self) -> PromptTemplate | None:
        if self.application is not None:
            return None
        messages = tuple(Message(m.role, m.content) for m in self.messages)
        return PromptTemplate(
            self.prompt, messages, api=self.engine.api, escape=self.special_tokens == "escape"
        )

    @property
    def asks_model(self) -> bool:
        return self.application is None or self.application.asks_model

    def key_template(self) -> FieldTemplate | None:
        return FieldTemplate(self.key, what="key", required=True) if self.key is not None else None

    def class_template(self) -> FieldTemplate | None:
        classes = None if self.scaling is None else self.scaling.classes
        return None if classes is None else FieldTemplate(classes.of, what="scaling.classes.of")

    def priority_template(self) -> FieldTemplate | None:
        return FieldTemplate(self.priority, what="priority") if self.priority is not None else None

    def answer_tokens_template(self) -> FieldTemplate | None:
        text = self.answer_tokens
        return FieldTemplate(text, what="answer_tokens") if text is not None else None

    def id_template(self) -> FieldTemplate | None:
        return FieldTemplate(self.id, what="id", required=True) if self.id is not None else None


def _within(inner: str, outer: str) -> bool:
    a, b = posixpath.normpath(inner), posixpath.normpath(outer)
    return a == b or a.startswith(b.rstrip("/") + "/")


def _read_with(path: str, folder: str) -> bool:
    if not _within(path, folder):
        return False
    names = posixpath.relpath(path, folder).split("/")
    return names == ["."] or not any(name.startswith((".", "_")) for name in names)
