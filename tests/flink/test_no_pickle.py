"""Forebay's data in checkpoints is read without running code."""

from __future__ import annotations

import asyncio
import pickle
import pickletools
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forebay.testing.waiting import wait_until

BEGINS = re.compile(rb"\x80[\x02-\x05]")


def pickles_in(data: bytes) -> Iterator[bytes]:
    """The non-empty pickles in `data` that have a start marker, as Python's have by default since 3.0."""
    for found in BEGINS.finditer(data):
        with suppress(ValueError, IndexError, UnicodeDecodeError):
            operations = list(pickletools.genops(data[found.start() :]))
            if len(operations) > 2:
                yield data[found.start() : found.start() + operations[-1][2] + 1]


@pytest.mark.parametrize("value", [b"bytes", b"x" * 3000, (1, "a", None), 2.5, {"a": [1]}])
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_found(value: object, protocol: int) -> None:
    pickled = pickle.dumps(value, protocol)
    assert list(pickles_in(b"\x80\x00\x80\x04.\x80" + pickled + b"\x80\x04")) == [pickled]


@pytest.mark.flink
def test_checkpoint_of_all_operators_contains_no_pickle(tmp_path: Path, flink_logs: Path) -> None:
    from pyflink.common import Types
    from tests.harness.programs import Remember

    import forebay as fb
    from forebay.apps.trends.graph import trend_events
    from forebay.apps.trends.values import TrendSettings
    from forebay.codec import decode
    from forebay.connectors.feeds.feed import Received
    from forebay.connectors.feeds.source import Polled, polled_source
    from forebay.connectors.files.sink import JsonlFiles, jsonl_sink
    from forebay.connectors.files.source import Files, ReplaySpeed, file_source, replay_source
    from forebay.connectors.formats import EventTime, Format
    from forebay.connectors.generator.source import Generator, generator_source
    from forebay.engine.prompt import PromptTemplate
    from forebay.flink.checkpoints import newest_checkpoint
    from forebay.flink.environment import FlinkConfig, flink_environment
    from forebay.flink.infer import infer, infer_stateful
    from forebay.flink.keying import TextField
    from forebay.flink.request_handler import InferenceSpec
    from forebay.flink.stages import payload
    from forebay.stateful.machine import IN_FLIGHT
    from forebay.stateful.stream_time import Tolerance
    from forebay.testing.engine import ScriptedEngineFactory
    from forebay.testing.script import Fixed

    class Posts:
        name = "posts"

        async def read(self, cursor: str | None) -> AsyncIterator[Received]:
            number = int(cursor or 0)
            while True:
                number += 1
                yield Received(str(number), b'{"text": "a post", "at": %d}' % number, f"posts@{number}")
                await asyncio.sleep(0.01)

    lines = b"".join(b'{"n": %d, "text": "line %d", "at": %d}\n' % (n, n, 200 * n) for n in range(20_000))
    (tmp_path / "lines.jsonl").write_bytes(lines)
    (tmp_path / "followed").mkdir()
    (tmp_path / "followed" / "a.jsonl").write_bytes(lines)
    form = Format(time=EventTime("at", "unix_ms"))
    config = FlinkConfig(
        checkpoint_dir=tmp_path / "checkpoints", checkpoint_interval_s=0.5, log_dir=flink_logs, heap_mb=1024
    )
    env = flink_environment(config)
    generated = generator_source(env, Generator(count=None, rate_per_s=50))
    # Slow: most of what a checkpoint holds is on its way, or in flight.
    slow = InferenceSpec(
        ScriptedEngineFactory(Fixed(0.2)), model="scripted", prompt=PromptTemplate("{{ text }}")
    )
    stateless = infer(
        file_source(env, Files(tmp_path / "lines.jsonl", form)).union(
            file_source(env, Files(tmp_path / "followed", form, follow=True)),
            polled_source(env, Polled(Posts(), form)),
        ),
        slow,
        name="stateless",
    )
    remembered = infer_stateful(
        replay_source(env, Files(tmp_path / "lines.jsonl", form), ReplaySpeed()),
        Remember(),
        slow,
        key=lambda event: event.fields["text"][-1],
        ttl_s=1000,
        name="stateful",
    )
    trends = trend_events(
        generated,
        TrendSettings(),
        TextField("text"),
        tolerance=Tolerance(late_ms=1000),
        shards=2,
        parallelism=1,
        name="trends",
    )
    # Its results are decoded where they are read, and only there.
    ask = fb.Inference(ScriptedEngineFactory(Fixed(0.2)), model="scripted", prompt="{{ text }}")
    objects = fb.infer(fb.read_jsonl(env, tmp_path / "lines.jsonl", name="objects"), ask, name="front")
    out = [
        objects.results.map(lambda result: result.id, Types.STRING()),
        objects.results.filter(lambda result: result.id > "").map(lambda result: result.id, Types.STRING()),
        objects.dead_letters.map(lambda letter: letter.cause, Types.STRING()),
        stateless.results.map(lambda data: decode(data).id, Types.STRING()),
        remembered.results.map(lambda data: decode(data).id, Types.STRING()),
        trends.messages.map(lambda data: payload(data).decode(), Types.STRING()),
    ]
    for number, stream in enumerate(out):
        jsonl_sink(stream, JsonlFiles(tmp_path / f"out-{number}"))
    job = env.execute_async("test")

    def caught() -> bytes:
        """Return the bytes of the newest checkpoint once everything keeps state; Flink may delete it
        meanwhile.
        """
        with suppress(FileNotFoundError):
            newest = newest_checkpoint(tmp_path / "checkpoints")
            data = b"" if newest is None else b"".join(file.read_bytes() for file in newest.iterdir())
            return data if all(each in data for each in kept) else b""
        return b""

    names = (IN_FLIGHT, "keys", "due", "snapshot", "since", "clocks", "place", "parts", "step", "progress")
    kept = [*(name.encode() for name in (*names, "cursor-and-count", "elapsed-and-next")), b"post", b"line 7"]
    found: list[bytes] = []
    try:
        wait_until(lambda: found.append(caught()) or bool(found[-1]), timeout_s=120)
    finally:
        job.cancel()
        with suppress(Exception):  # A cancelled job ends with an error.
            job.get_job_execution_result().result()
    assert list(pickles_in(found[-1])) == []
