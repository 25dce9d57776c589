"""The pipeline and the summary of the demo, over generated posts or a user's file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from forebay.cli.demo.topics import (
    Outbreak,
    answer_text,
    answered_topic,
    asks_by_likelihood,
    asks_by_schema,
    find_outbreak,
    planted_outbreak,
    slice_ms,
    slice_of,
)
from forebay.cli.output import blamed
from forebay.connectors.event_time import EventTime
from forebay.connectors.files.settings import JsonlSink
from forebay.connectors.files.sink import read_jsonl_sink
from forebay.connectors.generator.posts import TOPICS
from forebay.errors import MalformedRecord, SettingError
from forebay.json_numbers import read_json
from forebay.pipeline.load import FILES, guesses_of, parse_spec, source_settings
from forebay.pipeline.preflight import likely_instead
from forebay.pipeline.spec import PipelineSpec
from forebay.records import JSON, DeadLetter, Event
from forebay.settings import SecretRef

TEXT_FIELDS = ("text", "body", "content", "message", "title")
TIME_FIELDS = ("created_at", "time", "timestamp", "date")
GENERAL_TOPICS = ("sport", "politics", "business", "technology", "entertainment", "daily life")
TIME_FORMATS = ("iso8601", "%a %b %d %H:%M:%S %z %Y", "unix_s", "unix_ms", "unix_us", "unix_ns")
"""Tried in this order. Numeric formats must give a year of this century."""
THIS_CENTURY_MS = (946_684_800_000, 4_102_444_800_000)
FIRST_RECORDS = 1000
EXAMPLES = 5
EVENTS, CAPACITY = 300, 32


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`input` None: generated posts with a planted burst.

    `speed`: replay at recorded times, sped up by this factor; None: as fast as the engine takes it.
    `by_likelihood`: use the kind of prompt that suits only the default model, for generated posts.
    """

    out: Path
    input: Path | None = None
    events: int | None = None
    speed: float | None = None
    text_field: str | None = None
    time_field: str | None = None
    capacity: int | None = None
    seed: int = 1
    model: str | None = None
    api_key: SecretRef | None = None
    by_likelihood: bool = False


@dataclass(frozen=True, slots=True)
class Demo:
    """The demo's pipeline. `made_up`: posts include the true answers; `planted`: the planted outbreak."""

    spec: PipelineSpec
    text_field: str
    made_up: bool = False
    planted: Outbreak | None = None
    guess: str = ""
    """What was guessed of the input, to be shown."""


def plan_demo(options: DemoOptions) -> Demo:
    """The demo for `options`. Raises `SettingError` if the input cannot be used or `out` is not empty."""
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        raise SettingError(f"--out: expected a new or empty folder, found {options.out}")
    return demo_of(options)


def demo_of(options: DemoOptions) -> Demo:
    """Like `plan_demo`, without the check of `out`."""
    source, text, guess = _source(options)
    if options.input is None and options.by_likelihood:
        question = asks_by_likelihood(text)
    else:
        question = asks_by_schema(text, list(TOPICS) if options.input is None else GENERAL_TOPICS)
    key = {} if options.api_key is None else asdict(options.api_key)
    document = {
        **question,
        "name": "demo",
        "source": source,
        "engine": {
            **question["engine"],
            "model": options.model,
            "api_key": {name: value for name, value in key.items() if value is not None} or None,
        },
        "capacity": options.capacity or CAPACITY,
        "sink": {"type": "jsonl", "path": "results"},
        "dead_letters": {"type": "jsonl", "path": "dead-letters"},
        "checkpoint": {"dir": "checkpoints", "interval_s": 2.0},
    }
    spec = parse_spec(document, base=options.out.resolve(), name="demo")
    return Demo(spec, text, options.input is None, planted_outbreak(spec.source), guess)


def _source(options: DemoOptions) -> tuple[dict[str, JSON], str, str]:
    """The source, the field with the text, and what was guessed."""
    if options.input is None:
        _refuse_input_options(options)
        scale = (options.events or EVENTS) / 300
        # Starts after a quarter of the events and contains half of them.
        burst = {"start_s": 4.0 * scale, "duration_s": 2.0 * scale, "topic": "outage"}
        return (
            {
                "type": "generator",
                "seed": options.seed,
                "rate": 20.0,
                "count": options.events or EVENTS,
                "burst": {**burst, "factor": 4.0, "share": 0.8},
                "paced": False,
            },
            "text",
            "",
        )
    if not options.input.exists():
        raise SettingError(
            f"--input: there is no {options.input}; expected a file whose name ends in {', '.join(FILES)}"
        )
    source: dict[str, JSON] = source_settings(str(options.input.resolve()), "--input")
    guessed = guesses_of(source)
    source |= guessed
    guess = " and ".join(f"{name}: {value!r}" for name, value in guessed.items())
    if guess:
        how = "a guess; if it is wrong, correct it in the pipeline file that `forebay init` writes"
        guess = f"{options.input}: read with {guess}, {how}"
    record = _first_record(source)
    names = ", ".join(record) or "it has none"
    text = _field(record, options.text_field, TEXT_FIELDS, "--text-field")
    if text is None:
        raise SettingError(f"--text-field: name the field with the text, one of the input's: {names}")
    source["limit"] = options.events or EVENTS
    time = _field(record, options.time_field, TIME_FIELDS, "--time-field")
    format = None if time is None else _time_format(record, time)
    if format is not None:
        source |= {"time": time, "time_format": format}
    elif options.time_field is not None:
        found = f"{record[options.time_field]!r:.80}"
        raise SettingError(f"--time-field: {options.time_field!r} has no time in a known format: {found}")
    if options.speed is not None:
        if format is None:
            raise SettingError(f"--speed: needs a time field; name it with --time-field: {names}")
        source["replay"] = {"speed": options.speed}
    return source, text, guess


def _refuse_input_options(options: DemoOptions) -> None:
    given = {
        "--speed": options.speed,
        "--text-field": options.text_field,
        "--time-field": options.time_field,
    }
    named = ", ".join(name for name, value in given.items() if value is not None)
    if named:
        raise SettingError(f"{named}: only with --input, for events of your own")


def _first_record(source: Mapping[str, Any]) -> dict[str, Any]:
    from forebay.connectors.files.guess import files_with
    from forebay.connectors.files.source import first_records

    with blamed("--input"):
        records = list(islice(first_records(files_with(source)), FIRST_RECORDS))
    for record in records:
        if isinstance(record, Event):
            return dict(record.fields)
    letters = [record for record in records if isinstance(record, DeadLetter)]
    why = f": {letters[0].detail}" if letters else ""
    tried = source.get("delimiter", ",") if source["type"] == "csv" else None
    instead = likely_instead([letter.raw for letter in letters], tried)
    raise SettingError(
        f"--input: no event at the start of {source['path']}{why}{'; ' if instead else ''}{instead}"
    )


def _field(record: dict[str, Any], asked: str | None, usual: tuple[str, ...], option: str) -> str | None:
    if asked is None:
        return next((name for name in usual if name in record), None)
    if asked not in record:
        names = ", ".join(record) or "it has none"
        raise SettingError(f"{option}: expected one of the input's fields ({names}), found {asked!r}")
    return asked


def _time_format(record: dict[str, Any], name: str) -> str | None:
    for format in TIME_FORMATS:
        try:
            # In a separate mapping, because a dot in its name would mean nesting.
            time_ms = EventTime("time", format).of({"time": record[name]})
        except MalformedRecord:
            continue
        if not format.startswith("unix") or THIS_CENTURY_MS[0] <= time_ms < THIS_CENTURY_MS[1]:
            return format
    return None


@dataclass(frozen=True, slots=True)
class Slice:
    """A period of event time. `outbreak`: answers with the topic that breaks out."""

    start_ms: int
    events: int
    topic: str
    outbreak: int = 0


@dataclass(frozen=True, slots=True)
class Example:
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class Right:
    """How many of `events` were answered with the true topic."""

    right: int
    events: int

    @property
    def share(self) -> float:
        return self.right / max(self.events, 1)


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """The outcome of a demo. Generated posts have true answers: `right`, `by_topic` and `planted`."""

    results: int
    dead_letters: int
    completion_tokens: int
    call_p50_s: float
    call_p99_s: float
    sentiments: Mapping[str, int]
    topics: Mapping[str, int]
    causes: Mapping[str, int]
    slices: tuple[Slice, ...]
    examples: tuple[Example, ...]
    right: Right | None = None
    by_topic: Mapping[str, Right] = field(default_factory=dict)
    planted: Outbreak | None = None
    found: Outbreak | None = None


def summarize(demo: Demo) -> DemoSummary:
    spec = demo.spec
    assert isinstance(spec.sink, JsonlSink)
    assert isinstance(spec.dead_letters, JsonlSink)
    rows = [read_json(line) for line in read_jsonl_sink(Path(spec.sink.path))]
    letters = [read_json(line) for line in read_jsonl_sink(Path(spec.dead_letters.path))]
    return summary_of(demo, rows, letters)


def summary_of(demo: Demo, rows: list[dict[str, Any]], letters: list[dict[str, Any]]) -> DemoSummary:
    calls_s = sorted(row["called_s"] for row in rows)
    answers = [row["answer"] for row in rows]
    timed = [row for row in rows if row["time_ms"] is not None]
    found = find_outbreak((row["time_ms"], answered_topic(row["answer"])) for row in timed)
    made_up = rows if demo.made_up else []
    pairs = [(row["fields"]["gold_topic"], answered_topic(row["answer"])) for row in made_up]
    return DemoSummary(
        results=len(rows),
        dead_letters=len(letters),
        completion_tokens=sum(row["usage"]["completion_tokens"] for row in rows),
        call_p50_s=_quantile_s(calls_s, 0.5),
        call_p99_s=_quantile_s(calls_s, 0.99),
        sentiments=_counted(answer["sentiment"] for answer in answers if isinstance(answer, dict)),
        topics=_counted(map(answered_topic, answers)),
        causes=_counted(letter["cause"] for letter in letters),
        slices=tuple(_slices(timed, found)),
        examples=tuple(
            Example(str(row["fields"].get(demo.text_field, "")), answer_text(row["answer"]))
            for row in islice(rows, 0, None, max(1, len(rows) // EXAMPLES))
        )[:EXAMPLES],
        right=_right(pairs) if pairs else None,
        by_topic={
            topic: _right([pair for pair in pairs if pair[0] == topic])
            for topic in TOPICS
            if any(truth == topic for truth, _ in pairs)
        },
        planted=demo.planted,
        found=found,
    )


def _quantile_s(calls_s: Sequence[float], q: float) -> float:
    return calls_s[max(1, math.ceil(q * len(calls_s))) - 1] if calls_s else 0.0


def _right(pairs: Sequence[tuple[str, str]]) -> Right:
    return Right(sum(truth == answer for truth, answer in pairs), len(pairs))


def _counted(words: Iterable[str]) -> dict[str, int]:
    # A plain dict, because `asdict` would turn a counter into a counter of its items.
    return dict(Counter(words))


def _slices(timed: Sequence[dict[str, Any]], found: Outbreak | None) -> Iterator[Slice]:
    if not timed:
        return
    times = [row["time_ms"] for row in timed]
    first, last = min(times), max(times)
    counts: dict[int, Counter[str]] = {}
    for row in timed:
        at = slice_of(row["time_ms"], first, last)
        counts.setdefault(at, Counter())[answered_topic(row["answer"])] += 1
    for i in range(max(counts) + 1):
        topics = counts.get(i, Counter())
        most = topics.most_common(1)[0][0] if topics else ""
        start_ms = first + i * slice_ms(first, last)
        yield Slice(start_ms, topics.total(), most, topics[found.topic] if found else 0)
