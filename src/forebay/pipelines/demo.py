"""The main job in small: a ready pipeline over made-up posts or a file of the user's, and a summary."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from forebay.connectors.posts import TOPICS
from forebay.connectors.sinks import read_jsonl_sink
from forebay.errors import SettingError
from forebay.latency import LatencyHistogram
from forebay.pipelines.load import parse_spec
from forebay.pipelines.spec import JsonlSink, PipelineSpec
from forebay.records import JSON

TEXT_FIELDS = ("text", "body", "content", "message", "title")
TIME_FIELDS = ("created_at", "time", "timestamp", "date")
SENTIMENTS = ("positive", "negative", "neutral")
GENERAL_TOPICS = ("sport", "politics", "business", "technology", "entertainment", "daily life")
SLICES = 24
BURST = {"start_s": 4.0, "duration_s": 2.0, "factor": 4.0, "topic": "outage", "share": 0.8}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked for. `input` None: made-up posts with a burst planted in them.

    `speed`: replay at recorded times, so many times faster; None: as fast as the engine takes it.
    """

    out: Path
    input: Path | None = None
    events: int = 300
    speed: float | None = None
    text_field: str | None = None
    time_field: str | None = None
    capacity: int = 32
    mode: str = "thread"
    seed: int = 1


def demo_spec(options: DemoOptions) -> PipelineSpec:
    """The demo's pipeline. Raises `SettingError` where the input cannot be used."""
    source, text = _source(options)
    return parse_spec(
        {
            "name": "demo",
            "source": source,
            "messages": [
                {
                    "role": "system",
                    "content": "You label short posts. Give the sentiment and the topic of the post as JSON.",
                },
                {"role": "user", "content": "Post: {{ event[" + orjson.dumps(text).decode() + "] }}"},
            ],
            "output": {"schema": answer_schema(list(TOPICS) if options.input is None else GENERAL_TOPICS)},
            "sampling": {"max_tokens": 48},
            "capacity": options.capacity,
            "mode": options.mode,
            "sink": {"type": "jsonl", "path": "results"},
            "dead_letters": {"type": "jsonl", "path": "dead-letters"},
            "checkpoint": {"dir": "checkpoints", "interval_s": 2.0},
        },
        base=options.out.resolve(),
        name="demo",
    )


def answer_schema(topics: Sequence[str]) -> dict[str, JSON]:
    """Two labels from fixed sets: what a small model can do."""
    return {
        "type": "object",
        "properties": {"sentiment": {"enum": list(SENTIMENTS)}, "topic": {"enum": [*topics, "other"]}},
        "required": ["sentiment", "topic"],
        "additionalProperties": False,
    }


def _source(options: DemoOptions) -> tuple[dict[str, JSON], str]:
    if options.input is None:
        return {
            "type": "generator",
            "seed": options.seed,
            "rate": 20.0,
            "count": options.events,
            "burst": BURST,
            "paced": False,
        }, "text"
    kind = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}.get(options.input.suffix.lower())
    if kind is None:
        raise SettingError(f"--input: expected a .jsonl or .csv file, found {options.input.name!r}")
    fields = _first_record(options.input, kind)
    text = options.text_field or _pick(fields, TEXT_FIELDS, "--text-field")
    source: dict[str, JSON] = {
        "type": kind,
        "path": str(options.input.resolve()),
        "limit": options.events,
    }
    time = options.time_field or next((name for name in TIME_FIELDS if name in fields), None)
    if time is not None:
        source["time"] = time
    if options.speed is not None:
        if time is None:
            raise SettingError(f"--speed: needs a field with times; name it with --time-field: {fields}")
        source["replay"] = {"speed": options.speed}
    return source, text


def _first_record(path: Path, kind: str) -> list[str]:
    try:
        with path.open("rb") as file:
            line = file.readline(1 << 20)
        if kind == "csv":
            return next(csv.reader([line.decode("utf-8-sig")]), [])
        value = orjson.loads(line)
    except OSError as error:
        raise SettingError(f"--input: {path} cannot be read: {error.strerror}") from None
    except (orjson.JSONDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"--input: the first line of {path.name} is not {kind}: {error}") from None
    return list(value) if isinstance(value, dict) else []


def _pick(fields: list[str], wanted: tuple[str, ...], option: str) -> str:
    for name in wanted:
        if name in fields:
            return name
    raise SettingError(f"{option}: expected one of the input's fields: {', '.join(fields) or 'it has none'}")


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of event time: how many events, and the topic that most answers name."""

    start_ms: int
    events: int
    topic: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What came out of a demo. Latencies of the engine's calls, in seconds."""

    results: int
    dead_letters: int
    completion_tokens: int
    call_p50_s: float
    call_p99_s: float
    sentiments: Mapping[str, int]
    topics: Mapping[str, int]
    causes: Mapping[str, int]
    slices: tuple[Slice, ...]
    examples: tuple[Mapping[str, Any], ...]


def summarize(spec: PipelineSpec) -> Summary:
    """Read what the demo wrote."""
    assert isinstance(spec.sink, JsonlSink)
    rows = [orjson.loads(line) for line in read_jsonl_sink(Path(spec.sink.path))]
    letters = [orjson.loads(line) for line in read_jsonl_sink(Path(spec.dead_letters.path))]
    calls = LatencyHistogram()
    calls.extend(row["called_s"] for row in rows)
    return Summary(
        results=len(rows),
        dead_letters=len(letters),
        completion_tokens=sum(row["usage"]["completion_tokens"] for row in rows),
        call_p50_s=calls.quantile_s(0.5),
        call_p99_s=calls.quantile_s(0.99),
        sentiments=Counter(row["answer"]["sentiment"] for row in rows),
        topics=Counter(row["answer"]["topic"] for row in rows),
        causes=Counter(letter["cause"] for letter in letters),
        slices=tuple(_slices(rows)),
        examples=tuple(islice(rows, 0, None, max(1, len(rows) // 5)))[:5],
    )


def _slices(rows: list[dict[str, Any]]) -> Iterator[Slice]:
    timed = [row for row in rows if row["time_ms"] is not None]
    if not timed:
        return
    first = min(row["time_ms"] for row in timed)
    width = max(1, (max(row["time_ms"] for row in timed) - first) // SLICES + 1)
    counts: dict[int, Counter[str]] = {}
    for row in timed:
        counts.setdefault((row["time_ms"] - first) // width, Counter())[row["answer"]["topic"]] += 1
    for i in range(max(counts) + 1):
        topics = counts.get(i, Counter())
        yield Slice(first + i * width, topics.total(), topics.most_common(1)[0][0] if topics else "")
