"""The pipeline of a grid, and the events of a cell: the engine's requests, sent through Flink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from benchmarks.grid.cells import CellSpec, GridOptions, schedule_of
from benchmarks.grid.streamed import Session, Streamed, stream_load
from benchmarks.grid.tails import tail_lengths
from forebay.bench.load.lengths import Exactly
from forebay.bench.load.plan import fresh_nonce
from forebay.bench.load.workloads import RandomWords
from forebay.bench.stream.measure import StreamSession
from forebay.bench.stream.options import EventLoad, StreamOptions

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
    """The warm pipeline. Raises as `StreamSession` does."""
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
    """Process the events of a cell."""
    seed = options.seed + spec.repeat
    with TemporaryDirectory(prefix="forebay-grid-") as folder:
        load = EventLoad(
            schedule=schedule_of(spec.arrival, rate_per_s, options.trace_s[: options.requests]),
            events=options.requests,
            data=write_events(Path(folder) / "events.jsonl", options, spec.tail, seed=seed),
            seed=seed,
        )
        return stream_load(session, load)


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
