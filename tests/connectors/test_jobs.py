"""Sources and sinks in jobs on an embedded Flink cluster."""

from __future__ import annotations

import ast
import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.feeds import Drops, FeedServer, serve

from forebay.connectors.event_time import EventTime
from forebay.connectors.feeds import source as feed_source
from forebay.connectors.feeds.feed import Backoff, FeedRefused, Received
from forebay.connectors.feeds.source import LIMIT_REACHED, Polled, polled_source
from forebay.connectors.feeds.sse import SseFeed
from forebay.connectors.files import source as files_source
from forebay.connectors.files.source import Files, ReadPieces, ReplaySpeed, file_source, replay_source
from forebay.connectors.formats import Format, dead_letter_json
from forebay.connectors.generator import source as generator
from forebay.connectors.generator.source import Generator, generator_source
from forebay.errors import LaunchError
from forebay.flink.checkpoints import newest_checkpoint
from forebay.flink.event_time import with_event_time
from forebay.flink.job import submit
from forebay.ports import free_port
from forebay.records import DeadLetter
from forebay.testing.waiting import wait_until

pytestmark = pytest.mark.flink

BAD_LINES = [
    b'{"n": 1}',
    b"not json",
    b"\xff\xfe{",
    b'{"text": "nul \x00"}',
    '{"text": "é 😃"}'.encode(),
    b"",
    b"[1]",
    b'{"n": NaN}',
    b'{"text": "\\ud800"}',
    b"\x80\x85\xa0",
    b"\x0b\x0c\x1c\x1d\x1e",
    b'{"text": "' + b"x" * 300 + b'"}',
    b'{"n": 2}',
]


def raws(lines: list[list[str]], kind: str | None = None) -> list[bytes]:
    return [ast.literal_eval(line[1]) for line in lines if kind is None or line[0] == kind]


def test_every_line_is_an_event_or_a_dead_letter_with_its_exact_bytes(jobs: Any, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join(BAD_LINES))
    env = jobs.environment(parallelism=2)
    jobs.write(file_source(env, Files(source, Format(max_record_bytes=200))))
    lines = jobs.run(env)
    assert raws(lines) == [line for line in BAD_LINES if line]
    assert raws(lines, "Event") == [BAD_LINES[0], BAD_LINES[4], BAD_LINES[12]]
    assert [line[3] for line in lines][-1] == "in.jsonl@13"


class NotedPieces(ReadPieces):
    """Adds the number of each call to the file `noted` next to the source."""

    def process_element(self, value: int, ctx: Any) -> Iterator[bytes]:
        with Path(self._parts[0].path).with_name("noted").open("a") as noted:
            noted.write(f"{value}\n")
        yield from super().process_element(value, ctx)


def test_a_long_line_leaves_no_calls_without_work(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = [b'{"n": %d}' % n for n in range(20)]
    lines = [*short[:10], b'{"text": "' + b"x" * 1_000_000 + b'"}', *short[10:]]
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join(lines))
    monkeypatch.setattr(files_source, "ReadPieces", NotedPieces)
    env = jobs.environment()
    jobs.write(file_source(env, Files(source)))
    assert raws(jobs.run(env)) == lines
    # Two pieces of at least 64 bytes before the long line and three after it; the long line has 15,625.
    assert len((tmp_path / "noted").read_text().splitlines()) < 10


class Slowly:
    """Passes records on, slowly until the file `gate` exists."""

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    def __call__(self, data: bytes) -> bytes:
        if not self._gate.exists():
            time.sleep(0.002)
        return bytes(data)


def test_a_directory_is_read_by_name_and_once_across_a_restore(jobs: Any, tmp_path: Path) -> None:
    from forebay.flink.types import BYTES

    source, gate = tmp_path / "in", tmp_path / "gate"
    source.mkdir()
    # Reads a few lines at a time, slowly, so that the job ends far before the end.
    total, pad = 6_000, "x" * 80
    for name in (3, 1, 5, 2, 4):
        numbers = range((name - 1) * total // 5, name * total // 5)
        (source / f"{name}.jsonl").write_text("".join(f'{{"n":{n},"pad":"{pad}"}}\n' for n in numbers))

    def build(**changes: Any) -> Any:
        env = jobs.environment(**changes)
        jobs.write(file_source(env, Files(source)).map(Slowly(gate), BYTES).set_parallelism(1))
        return env

    jobs.run_until(build(), lambda: len(jobs.lines()) > 0)
    assert len(jobs.lines()) < total
    gate.touch()
    (source / "0.jsonl").write_bytes(b'{"n":-1}\n')
    lines = jobs.run(build(restore_from=newest_checkpoint(jobs.checkpoints)))
    assert len(lines) == total
    assert {line[3]: orjson.loads(raw)["n"] for line, raw in zip(lines, raws(lines), strict=True)} == {
        f"in/{n * 5 // total + 1}.jsonl@{n % (total // 5) + 1}": n for n in range(total)
    }


@pytest.mark.long
def test_a_directory_that_grows_is_read_once_across_a_restore(jobs: Any, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()

    def add(name: str, numbers: range) -> None:
        (tmp_path / name).write_bytes(b"".join(b'{"n":%d}\n' % n for n in numbers))
        (tmp_path / name).rename(source / name)

    def build(**changes: Any) -> Any:
        env = jobs.environment(**changes)
        jobs.write(file_source(env, Files(source, follow=True, every_s=0.1)))
        return env

    add("a.jsonl", range(50))
    jobs.run_until(build(), lambda: len(jobs.lines()) >= 50)
    add("b.jsonl", range(50, 80))
    jobs.run_until(build(restore_from=newest_checkpoint(jobs.checkpoints)), lambda: len(jobs.lines()) >= 80)
    # A file that is replaced while the job is down, and another one while it runs.
    add("a.jsonl", range(80, 100))
    build_again = build(restore_from=newest_checkpoint(jobs.checkpoints))
    replaced = iter([lambda: add("b.jsonl", range(100, 120))])

    def done() -> bool:
        if len(jobs.lines()) >= 100:
            next(replaced, lambda: None)()
        return len(jobs.lines()) >= 120

    jobs.run_until(build_again, done)
    lines = jobs.lines()
    assert sorted(orjson.loads(raw)["n"] for raw in raws(lines)) == list(range(120))
    assert len({line[3] for line in lines}) == 120
    assert {"in/a.jsonl@1", "in/a.jsonl@2:1", "in/b.jsonl@2:20"} <= {line[3] for line in lines}


def test_dead_letters_are_replayed_unchanged(jobs: Any, tmp_path: Path) -> None:
    source = tmp_path / "letters.jsonl"
    originals = [b'{"n": 1}', b"\xff\x00", b"no json"]
    letters = [dead_letter_json(DeadLetter(raw=raw, cause="timeout", detail="x")) for raw in originals]
    source.write_text("\n".join([*letters, "no letter"]))
    env = jobs.environment()
    jobs.write(file_source(env, Files(source, letters=True)))
    lines = jobs.run(env)
    assert raws(lines) == [*originals, b"no letter"]
    assert raws(lines, "Event") == originals[:1]


class FastClock:
    """A clock on which fifty seconds pass in one."""

    def monotonic_s(self) -> float:
        return 50 * time.monotonic()

    def wall_ms(self) -> int:
        return 0

    def wall_us(self) -> int:
        return self.wall_ms() * 1000


@pytest.mark.long
def test_a_paced_generator_continues_after_a_restore(jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Twenty seconds, of which the first run has two or three.
    total = 4000
    config = Generator(count=total, rate_per_s=200)

    def build(**changes: Any) -> Any:
        env = jobs.environment(**changes)
        jobs.write(generator_source(env, config))
        return env

    jobs.run_until(build(), lambda: len(jobs.lines()) >= 40)
    assert len(jobs.lines()) < total
    # Time passes faster now; when a post is due stays as it was.
    monkeypatch.setattr(generator, "SystemClock", FastClock)
    lines = jobs.run(build(restore_from=newest_checkpoint(jobs.checkpoints)))
    assert sorted(line[3] for line in lines) == sorted(f"generator@{i}" for i in range(total))


def test_a_replayed_directory_continues_in_its_file_despite_new_ones(jobs: Any, tmp_path: Path) -> None:
    from forebay.flink.types import BYTES

    source, gate = tmp_path / "in", tmp_path / "gate"
    source.mkdir()
    total, pad = 6_000, "x" * 80
    for name in (1, 2, 3):
        numbers = range((name - 1) * total // 3, name * total // 3)
        rows = "".join(f'{n},1000,"{pad}\n{n}"\n' for n in numbers)
        (source / f"{name}.csv").write_text("n,at,text\n" + rows)

    def build(**changes: Any) -> Any:
        env = jobs.environment(**changes)
        config = Files(source, Format("csv", time=EventTime("at", "unix_s")))
        replayed = replay_source(env, config, ReplaySpeed())
        jobs.write(replayed.map(Slowly(gate), BYTES).set_parallelism(1))
        return env

    jobs.run_until(build(), lambda: len(jobs.lines()) > 0)
    assert len(jobs.lines()) < total
    gate.touch()
    (source / "0.csv").write_text("n,at,text\n" + f'-1,1000,"longer by much {pad}{pad}"\n' * 3000)
    (source / "1.csv").open("a").write(f'-1,1000,"added {pad}"\n')
    lines = jobs.run(build(restore_from=newest_checkpoint(jobs.checkpoints)))
    expected = {b'%d,1000,"%s\n%d"' % (n, pad.encode(), n) for n in range(total)}
    assert len(lines) == total
    assert set(raws(lines, "Event")) == expected


def test_disconnecting_feed_gives_each_event_once_over_a_restore(jobs: Any) -> None:
    total = 3000
    records = [{"n": n, "u": "é"} for n in range(total)]
    # The first run cannot come to the end, however late it is cancelled.
    with serve(FeedServer(records[: total // 2], Drops(5, every=100))) as server:

        def build(**changes: Any) -> Any:
            env = jobs.environment(**changes)
            feed = SseFeed(server.events_url, backoff=Backoff(0.01, 0.05))
            jobs.write(polled_source(env, Polled(feed)))
            return env

        jobs.run_until(build(), lambda: len(jobs.lines()) >= 100)
        server.records = records
        jobs.run_until(
            build(restore_from=newest_checkpoint(jobs.checkpoints)), lambda: len(jobs.lines()) >= total
        )
        expected = [server.event(n) for n in range(total)]
    assert sorted(raws(jobs.lines(), "Event")) == sorted(expected)


def drained(jobs: Any, env: Any, port: int) -> None:
    """Run a job to its end; drain it if a source reports that it has reached its limit."""
    job = submit(env, "test", jobs.rest(port))
    while (end := job.ended()) is None:
        with suppress(LaunchError):
            if job.counts().get(LIMIT_REACHED):
                job.drain(jobs.checkpoints / job.id)
    assert end == ""


def test_restored_feed_at_its_limit_reads_no_more(jobs: Any) -> None:
    with serve(FeedServer([{"n": n} for n in range(1000)], Drops(5, every=100))) as server:

        def run(**changes: Any) -> None:
            port = free_port()
            options = {
                "rest.port": str(port),
                "rest.bind-port": str(port),
                "metrics.fetcher.update-interval": "100 ms",
            }
            env = jobs.environment(options=options, **changes)
            feed = SseFeed(server.events_url, backoff=Backoff(0.01, 0.05))
            jobs.write(polled_source(env, Polled(feed, limit=123)))
            drained(jobs, env, port)

        run()
        expected = [server.event(n) for n in range(123)]
        assert raws(jobs.lines(), "Event") == expected
        (savepoint,) = jobs.checkpoints.glob("*/drain-*/savepoint-*")
        run(restore_from=savepoint)
        assert sorted(raws(jobs.lines(), "Event")) == sorted(expected)


@dataclass
class FailsAtTheEnd:
    """Returns a record; once the file `gate` exists, two more, and then fails."""

    gate: Path
    name: str = "fails at the end"

    async def read(self, cursor: str | None) -> AsyncIterator[Received]:
        yield Received("0", b'{"n": 0}', "n@0")
        await asyncio.to_thread(wait_until, self.gate.exists)
        for n in (b"1", b"2"):
            yield Received(n.decode(), b'{"n": %s}' % n, "n@" + n.decode())
        raise FeedRefused("no more of this")


def test_a_feed_that_fails_at_the_end_of_the_input_fails_its_job(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forebay.flink.environment import Restart

    gate = tmp_path / "gate"

    class AtTheEnd(feed_source.Poll):
        """Opens the gate after the last call."""

        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[bytes]:
            gate.touch()
            yield from super().on_timer(timestamp, ctx)

    monkeypatch.setattr(feed_source, "Poll", AtTheEnd)
    port = free_port()
    env = jobs.environment(
        options={"rest.port": str(port), "rest.bind-port": str(port)}, restart=Restart(attempts=0)
    )
    jobs.write(polled_source(env, Polled(FailsAtTheEnd(gate), limit=100)))
    job = submit(env, "test", jobs.rest(port))
    wait_until(lambda: len(jobs.lines()) == 1)
    while (end := job.ended()) is None:
        with suppress(LaunchError):
            job.drain(jobs.checkpoints / job.id)
    assert "no more of this" in end


class FailOnce:
    """Raises at the record with `text`, once over all instances."""

    def __init__(self, text: bytes, marker: Path) -> None:
        self._text = text
        self._marker = marker

    def __call__(self, data: bytes) -> bytes:
        if self._text in bytes(data) and not self._marker.exists():
            self._marker.touch()
            raise RuntimeError("planted")
        return bytes(data)


def test_a_feed_gives_each_event_once_when_the_job_fails_and_restarts(jobs: Any, tmp_path: Path) -> None:
    from forebay.flink.environment import Restart
    from forebay.flink.types import BYTES

    total = 1500
    with serve(FeedServer([{"n": n} for n in range(total)])) as server:
        env = jobs.environment(restart=Restart(attempts=3, delay_s=0.05))
        stream = polled_source(env, Polled(SseFeed(server.events_url, backoff=Backoff(0.01, 0.05))))
        slowly = stream.map(Slowly(tmp_path / "failed"), BYTES)
        jobs.write(slowly.map(FailOnce(b'"n":900', tmp_path / "failed"), BYTES))
        jobs.run_until(env, lambda: len(jobs.lines()) >= total)
        expected = [server.event(n) for n in range(total)]
    assert (tmp_path / "failed").exists()
    assert sorted(raws(jobs.lines(), "Event")) == sorted(expected)


def test_watermarks_trail_the_records_times(jobs: Any, tmp_path: Path) -> None:
    from pyflink.common import Types
    from pyflink.datastream import ProcessFunction

    from forebay.connectors.files.sink import JsonlFiles, jsonl_sink, read_jsonl_sink

    class Timestamps(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield str(ctx.timestamp())

    config = Generator(count=20, rate_per_s=10, paced=False)
    env = jobs.environment(parallelism=2)
    stream = with_event_time(generator_source(env, config), out_of_orderness_ms=100)
    stamps = stream.process(Timestamps(), Types.STRING()).set_parallelism(1)
    jsonl_sink(stamps, JsonlFiles(tmp_path / "stamps"))
    env.execute("test")
    expected = [str(config.event(i).time_ms).encode() for i in range(20)]
    assert list(read_jsonl_sink(tmp_path / "stamps")) == expected
