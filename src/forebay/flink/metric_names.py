"""Every metric that Forebay's functions in Flink export: name, kind, unit and meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyflink.datastream import RuntimeContext
    from pyflink.metrics import Counter

Kind = Literal["counter", "gauge", "histogram"]
GROUP = "forebay"
PREFIX = "flink_taskmanager_job_task_operator_forebay_"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    unit: str
    help: str
    over: Literal["sum", "max", "min"] = "sum"
    label: str = ""
    when: str = ""

    @property
    def exported(self) -> tuple[str, ...]:
        if self.kind == "histogram":
            return f"{self.name}_le_bucket", f"{self.name}_sum", f"{self.name}_count"
        name = f"{self.name}_{self.label}" if self.label else self.name
        return (f"{name}_total",) if self.kind == "counter" else (name,)


AT_FIRST = "from the first on"
IN_APPLICATIONS = "in applications only"
WITH_SCALING = "with `scaling`"
TO_KAFKA = "if the sink is Kafka"
BY_COMMITS = "if the operator's task writes the results to files or to Kafka"

REPLACED_FILES, LIMIT_REACHED = "replaced_files", "limit_reached"
UNREADABLE_FOLDERS = "unreadable_folders"
TOO_LARGE, TOO_LARGE_ASSIGNMENTS = "too_large", "too_large_assignments"
FAILURES, FINDINGS, OPEN_FINDINGS = "failures", "findings", "open_findings"
READ_RATIO = "read_ratio"
OLDEST, LOOKED = "oldest_read_timestamp_seconds", "looked_monotonic_seconds"
WAITED = "waited_seconds"
COST = "cost_micro"
REPLICAS = "replicas"
CALL, EVENT, FIRST_TOKEN = "call_seconds", "event_seconds", "first_token_seconds"
COMMIT = "answer_to_commit_seconds"
CALL_P50, CALL_P99, EVENT_P50, EVENT_P99 = (
    f"{what}_{rank}_seconds" for what in ("call", "event") for rank in ("p50", "p99")
)

METRICS = (
    Metric("accepted", "counter", "events", "came in, also those that could not be read"),
    Metric("restored", "counter", "events", "found in the checkpoint after a restart"),
    Metric("results", "counter", "results", "left the operator"),
    Metric("dead_letters", "counter", "events", "became dead letters, also those made before the operator"),
    Metric(
        FAILURES, "counter", "failures",
        "dead letters, and calls that an application continued without, by [cause](dead-letters.md)",
        label="cause", when=AT_FIRST,
    ),
    Metric(
        TOO_LARGE, "counter", "results",
        "too large for the topic: dead letters that `dead_letters_total` does not count", when=TO_KAFKA,
    ),
    Metric(
        TOO_LARGE_ASSIGNMENTS, "counter", "results", "those of them that were for the topic of `assignments`",
        when=TO_KAFKA,
    ),
    Metric("cut_answers", "counter", "results", 'answers cut at `max_tokens` (`"finish_reason": "length"`)'),
    Metric("calls", "counter", "records", "an engine was called for them"),
    Metric("restored_calls", "counter", "calls", "made after a restart; some were sent before, too"),
    Metric("retries", "counter", "calls", "repeated after a failed one"),
    Metric("journal_hits", "counter", "answers", "taken from the journal"),
    Metric("journal_failures", "counter", "operations", "reads and writes of the journal that failed"),
    Metric("suspect_times", "counter", "events", "have a time in 1970 or 1900: is `time_format` right?"),
    Metric("prompt_tokens", "counter", "tokens", "of prompts, as the engine counted them"),
    Metric("completion_tokens", "counter", "tokens", "of answers, likewise"),
    Metric("cached_tokens", "counter", "tokens", "those of the prompts that were in the prefix cache"),
    Metric(
        COST, "counter", "millionths of the currency",
        "what calls have cost by [`prices`](../pipeline.md#prices-and-a-budget), rounded down", when=AT_FIRST,
    ),
    Metric(
        "kv_transfers", "counter", "answers", "decoded with the KV cache that a server of "
        "[`prefill`](replicas.md#prefill-and-decode-apart) handed over",
    ),
    Metric(
        "kv_fallbacks_no_server", "counter", "answers",
        "prefilled by the replica that decoded them, because no server of `prefill` worked",
    ),
    Metric("kv_fallbacks_prefill_failed", "counter", "answers", "the same, because the prefill failed"),
    Metric(
        "kv_fallbacks_no_kv_cache", "counter", "answers",
        "the same, because the server of `prefill` runs without a KV connector",
    ),
    Metric(
        "kv_fallbacks_decode_failed", "counter", "answers",
        "the same, because the first decoding failed: the KV cache had expired, or the server failed",
    ),
    Metric(WAITED, "counter", "seconds", "the input waited because `capacity` was used up"),
    Metric("dropped_spans", "counter", "spans", "of [traces](#traces) that the collector did not take"),
    Metric(EVENT, "histogram", "seconds", "from the read of an event to its result"),
    Metric(CALL, "histogram", "seconds", "of one call to the engine"),
    Metric(FIRST_TOKEN, "histogram", "seconds", "from a call to its first token, if the engine streams"),
    Metric(
        COMMIT, "histogram", "seconds",
        "from a result to the commit that makes it visible, at most 5 % or 50 ms too long", when=BY_COMMITS,
    ),
    Metric(EVENT_P50, "gauge", "seconds", "median of the last 30 to 60 s, for the live line", "max"),
    Metric(EVENT_P99, "gauge", "seconds", "99th percentile, likewise", "max"),
    Metric(CALL_P50, "gauge", "seconds", "the same of one call", "max"),
    Metric(CALL_P99, "gauge", "seconds", "likewise", "max"),
    Metric("in_flight", "gauge", "calls", "without an answer: at the engine, or waiting for room or a retry"),
    Metric("pending", "gauge", "events", "accepted, and waiting for a free place"),
    Metric(
        OLDEST, "gauge", "Unix time",
        "when the oldest event without an answer was read; in the year 9999 if all have one", "min",
    ),
    Metric(
        LOOKED, "gauge", "seconds",
        "when the operator last looked after its calls; about 2.5e11 if it has none", "min",
    ),
    Metric(
        REPLICAS, "gauge", "replicas", "may get requests, of two pools those that decode", "min",
        when="from the first event on",
    ),
    Metric(
        "wanted_replicas", "gauge", "replicas", "requested by the scaling policy, those that boot included",
        "max", when=WITH_SCALING,
    ),
    Metric(
        "backlog_tokens", "gauge", "tokens", "of what waits: prompts, and answers at the recent length",
        when=WITH_SCALING,
    ),
    Metric(
        "next_deadline_seconds", "gauge", "seconds",
        "until the first record that waits is due, negative if it is late; 10,000,000 if nothing waits",
        "min", when=WITH_SCALING,
    ),
    Metric(
        "records", "counter", "events",
        "taken in by trends or topics; those of half a second are added with the next one",
        when=IN_APPLICATIONS,
    ),
    Metric(
        FINDINGS, "counter", "results", "by kind, for instance `born` or `ended`",
        label="kind", when=IN_APPLICATIONS,
    ),
    Metric(
        OPEN_FINDINGS, "gauge", "findings", "trends or topics that have begun and not ended",
        when=IN_APPLICATIONS,
    ),
    Metric(
        READ_RATIO, "gauge", "ratio", "share of the source that was read", "max", when="if it has an end"
    ),
    Metric(REPLACED_FILES, "counter", "files", "replaced in a folder", when="if files are followed"),
    Metric(
        UNREADABLE_FOLDERS, "gauge", "folders",
        "1 while the folder or one in it cannot be read, so that nothing new is read; else 0",
        when="if files are followed",
    ),
    Metric(LIMIT_REACHED, "counter", "feeds", "have reached their `limit`", when="if the source is a feed"),
)  # fmt: skip
BY_NAME = {each.name: each for each in METRICS}
_READ = {
    (each.name if each.label else each.exported[0]): each for each in METRICS if each.kind != "histogram"
}
LABEL_VALUE = re.compile(r"[a-z][a-z0-9_]{0,39}")
MAX_LABEL_VALUES = 50
OTHER = "other"


def full_name(metric: str) -> str:
    found = BY_NAME.get(metric)
    return metric if found is None else PREFIX + found.exported[0]


def counter_of(runtime_context: RuntimeContext, name: str) -> Counter:
    return runtime_context.get_metrics_group().add_group(GROUP).counter(BY_NAME[name].exported[0])


def label_value(value: str, known: dict[str, int]) -> str:
    """Return `value`, or `OTHER` if it is unusual or beyond `MAX_LABEL_VALUES`."""
    usual = value in known or (len(known) < MAX_LABEL_VALUES and LABEL_VALUE.fullmatch(value))
    return value if usual else OTHER


def read_name(identifier: str) -> tuple[Metric, str] | None:
    """Parse a metric's name from Flink's REST service. Returns the metric and its key; None for others.

    The key is `NAME`, or `NAME_VALUE` if it has a label.
    """
    _, found, name = identifier.rpartition(f".{GROUP}.")
    first, *label = name.split(".")
    metric = _READ.get(first) if found else None
    if metric is None or bool(label) != bool(metric.label):
        return None
    return metric, f"{metric.name}_{label[1]}" if label else metric.name


def table() -> Iterator[str]:
    yield "| metric | kind | unit | meaning |"
    yield "|---|---|---|---|"
    for each in METRICS:
        names = f"`{each.name}`" if each.kind == "histogram" else f"`{each.exported[0]}`"
        when = f"; {each.when}" if each.when else ""
        yield f"| {names} | {each.kind} | {each.unit} | {each.help}{when} |"
