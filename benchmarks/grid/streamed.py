"""A pipeline under one load: its figures, why they are invalid, and its document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

import orjson

from benchmarks.grid.cells import CellSpec, GridOptions, schedule_of, tail_lengths
from forebay.bench.load.schedules import fresh_nonce
from forebay.bench.load.workloads import Exactly, RandomWords
from forebay.bench.metrics import Distribution
from forebay.bench.records import EngineSample
from forebay.bench.stream.events import EventLoad, StreamOptions
from forebay.bench.stream.figures import StreamFigures, stream_figures
from forebay.bench.stream.measure import StreamSession
from forebay.bench.stream.records import StreamRun
from forebay.bench.stream.verdict import judge_stream
from forebay.errors import ForebayError

OF_ONE = re.compile(r"engine[0-9]*_(?!cores$|memory_mb$)")
"""The prefix of a signal of one engine of several."""
PROCESS = re.compile(r"(engine|run|feed)[0-9]*_(cores|memory_mb)")
GAUGES = ("running", "waiting", "in_flight", "pending")
"""Summed over several engines; of `kv_cache_usage` the largest counts."""
COUNTERS = ("preemptions", "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")


def sample_figures(samples: Sequence[EngineSample], duration_s: float) -> dict[str, float]:
    """Means and maxima over the run, by name:

    - `running_mean`, `running_max`, `waiting_…`, `kv_cache_usage_…`, `in_flight_…`, `pending_…`
    - `preemptions`, `prompt_tokens`, `generation_tokens`: totals of the run
    - `prefix_hit_share`: share of prompt tokens found in the prefix cache
    - `engine_cores_mean`, `engine_memory_mb_max`, and the same of `run`, the pipeline, and `feed`

    Unknown values are absent. Samples from before and after the run are used only if there are no others;
    counters use the first and the last of all.
    """
    merged = [(sample.at_s, _merged(sample.values)) for sample in samples]
    within = [values for at_s, values in merged if 0 <= at_s <= duration_s] or [each for _, each in merged]
    found: dict[str, float] = {}
    for name in (*GAUGES, "kv_cache_usage"):
        if counts := [values[name] for values in within if name in values]:
            found[f"{name}_mean"], found[f"{name}_max"] = fmean(counts), max(counts)
    for part in ("engine", "run", "feed"):
        if cores := [values[f"{part}_cores"] for values in within if f"{part}_cores" in values]:
            found[f"{part}_cores_mean"] = fmean(cores)
        memory = [values[f"{part}_memory_mb"] for values in within if f"{part}_memory_mb" in values]
        if memory:
            found[f"{part}_memory_mb_max"] = max(memory)
    counted = {}
    for name in COUNTERS:
        if counts := [values[name] for _, values in merged if name in values]:
            counted[name] = counts[-1] - counts[0]
    for name in COUNTERS[:3]:
        if name in counted:
            found[name] = counted[name]
    if counted.get("prefix_cache_queries"):
        found["prefix_hit_share"] = counted.get("prefix_cache_hits", 0.0) / counted["prefix_cache_queries"]
    return found


def _merged(values: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in values.items():
        process = PROCESS.fullmatch(name)
        plain = f"{process[1]}_{process[2]}" if process else OF_ONE.sub("", name, count=1)
        if plain == "kv_cache_usage":
            found[plain] = max(found.get(plain, 0.0), value)
        else:
            found[plain] = found.get(plain, 0.0) + value
    return found


PERCENTILES = (50.0, 90.0, 99.0)
MAX_CHARS = 200


@dataclass(frozen=True, slots=True)
class Streamed:
    """A pipeline in front of the engine, under one load."""

    run: StreamRun
    figures: StreamFigures

    @property
    def reasons(self) -> tuple[str, ...]:
        failed = self.figures.failed
        letters = [f"{failed} of {self.figures.offered} events became dead letters"] if failed else []
        return (*letters, *judge_stream(self.run).reasons)


class Session(Protocol):
    """A running pipeline that takes one load after the other."""

    def measure(self, load: EventLoad) -> StreamRun: ...


Item = TypeVar("Item")


def stream_each(
    items: Iterable[Item],
    open_session: Callable[[], AbstractContextManager[Session]],
    load_one: Callable[[Session, Item], Streamed],
) -> Iterator[tuple[Item, Streamed | None, str | None]]:
    """Measure `items` in order over one pipeline: each with its figures, or what failed, or both."""
    waiting = list(items)
    while waiting:
        current: list[Item] = []
        try:
            with open_session() as session:
                while waiting:
                    current = [waiting.pop(0)]
                    found = load_one(session, current[0])
                    failure = found.run.failure
                    yield current[0], found, failure
                    if failure is None and not found.run.complete:
                        return
                    current = []
                    if failure is not None:
                        break
        except ForebayError as error:
            failed, waiting = (current, waiting) if current else (waiting, [])
            for item in failed:
                yield item, None, first_line(error)


def first_line(error: ForebayError) -> str:
    return str(error).strip().partition("\n")[0][:MAX_CHARS]


def streamed_document(streamed: Streamed) -> dict[str, Any]:
    """The figures of a pipeline: `answered_s` and `committed_s` from an event's own time, `stages_s` by
    stage; of results that stand for many events, if these are `followed`."""
    figures, run = streamed.figures, streamed.run
    lag = figures.lag.get("answered")
    checkpoint = figures.checkpoint
    return {
        "followed": run.noun,
        "events": figures.offered,
        "committed": figures.committed,
        "failed": figures.failed,
        "lost": figures.lost,
        "doubled": figures.doubled,
        "duration_s": figures.duration_s,
        "answered_per_s": figures.answered_per_s,
        "committed_per_s": figures.committed_per_s,
        "prompt_tokens": figures.prompt_tokens,
        "output_tokens": figures.output_tokens,
        "output_tokens_per_s": figures.answered_per_s * figures.output_tokens / max(figures.offered, 1),
        **{
            f"{name}_s": distribution_document(figures.latency.get(name))
            for name in ("answered", "committed")
        },
        "stages_s": {name: distribution_document(found) for name, found in figures.stages.items()},
        "lag_per_s": None if lag is None else asdict(lag),
        "most_lag": figures.most_lag.get("answered"),
        "checkpoints": figures.checkpoints,
        "checkpoint_s": distribution_document(checkpoint.get("duration_s")),
        "state_bytes": distribution_document(checkpoint.get("state_bytes")),
        "others_cores": run.others_cores,
        "resources": sample_figures(run.samples, run.duration_s),
    }


def distribution_document(found: Distribution | None) -> dict[str, float | None] | None:
    """Mean and p50, p90, p99 as far as the samples allow."""
    if found is None:
        return None
    counts = {f"p{percent:g}": found.percentiles.get(percent) for percent in PERCENTILES}
    return {"mean": found.mean, **counts, "max": found.maximum}


def figure(cell: Mapping[str, Any], *path: str) -> float | None:
    at: Any = cell
    for name in path:
        at = at.get(name) if isinstance(at, Mapping) else None
    return float(at) if isinstance(at, int | float) else None


TEMPERATURE = 1.0
"""Random weights slightly prefer one token to all others, and at a temperature of 0 answer nothing else."""
CAPACITY = 64
CHECKPOINT_S = 1.0
WARM_EVENTS = 10


def grid_pipeline(
    urls: tuple[str, ...], model: str | None, options: GridOptions, subtasks: int
) -> dict[str, Any]:
    """The pipeline file's value: one question per event, with the number of tokens in the event."""
    return {
        "name": "grid",
        "source": {"type": "generator"},
        "prompt": "{{ text }}",
        "engine": {"url": list(urls), "model": model, "api": "completions"},
        "sampling": {
            "max_tokens": options.limit_tokens,
            "temperature": TEMPERATURE,
            "extra": {"ignore_eos": True},
        },
        # Events before the first load are made-up posts.
        "answer_tokens": "{{ tokens | default(8) }}",
        "capacity": CAPACITY,
        "parallelism": subtasks,
        "shards": max(8, subtasks),
        "checkpoint": {"interval_s": CHECKPOINT_S},
        "sink": {"type": "jsonl", "path": "unused"},
    }


@contextmanager
def open_session(
    urls: tuple[str, ...], model: str | None, options: GridOptions, subtasks: int
) -> Iterator[Session]:
    with TemporaryDirectory(prefix="forebay-grid-") as folder:
        warm = write_events(Path(folder) / "warm.jsonl", options, options.tails[0], seed=options.seed)
        stream = StreamOptions(
            pipeline=grid_pipeline(urls, model, options, subtasks),
            engine=urls,
            load=EventLoad(events=options.requests, data=warm, seed=options.seed),
            warm_events=WARM_EVENTS,
        )
        with StreamSession(stream) as session:
            session.warm_up()
            yield session


def stream_cell(session: Session, options: GridOptions, spec: CellSpec, rate_per_s: float) -> Streamed:
    seed = options.seed + spec.repeat
    with TemporaryDirectory(prefix="forebay-grid-") as folder:
        load = EventLoad(
            schedule=schedule_of(spec.arrival, rate_per_s, options.trace_s[: options.requests]),
            events=options.requests,
            data=write_events(Path(folder) / "events.jsonl", options, spec.tail, seed=seed),
            seed=seed,
        )
        run = session.measure(load)
        return Streamed(run, stream_figures(run))


def write_events(path: Path, options: GridOptions, tail: str, *, seed: int) -> Path:
    """Write the events of a load: a text that no earlier one had, and the length of the answer."""
    lengths = tail_lengths(tail, options.requests, options.mean_tokens, options.limit_tokens, seed)
    words = RandomWords(Exactly(options.prompt_tokens), Exactly(1))
    texts = words.requests(options.requests, seed=seed, nonce=fresh_nonce())
    lines: list[Mapping[str, Any]] = [
        {"text": text.prompt, "tokens": tokens} for text, tokens in zip(texts, lengths, strict=True)
    ]
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path
