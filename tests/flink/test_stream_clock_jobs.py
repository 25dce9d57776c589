"""Event time in jobs: a clock of two partitions across a restore, and unevenly distributed records."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay.testing.waiting import wait_until

if TYPE_CHECKING:
    from tests.harness.operators import Runs

pytestmark = pytest.mark.flink
TOTAL = 4_000
HOUR_MS = 3_600_000
FUTURE_MS = 10**13


def time_ms(number: int) -> int:
    """Every second record is of a partition an hour behind; some of the others are from the future."""
    if number % 2:
        return number * 10
    return FUTURE_MS if number % 200 >= 160 else HOUR_MS + number * 10


def test_lagging_partition_passes_and_future_moves_no_clock(tmp_path: Path, flink_logs: Path) -> None:
    from pyflink.common import Types

    from forebay.codec import decode, encode
    from forebay.connectors.files.sink import JsonlFiles, jsonl_sink, read_jsonl_sink
    from forebay.connectors.files.source import Files, file_source
    from forebay.connectors.formats import Format
    from forebay.flink.checkpoints import newest_checkpoint
    from forebay.flink.environment import FlinkConfig, flink_environment
    from forebay.flink.event_time import clocked
    from forebay.flink.stages import payload
    from forebay.flink.types import BYTES
    from forebay.records import Event
    from forebay.stateful.stream_time import Tolerance

    quick, messages, refused = (tmp_path / name for name in ("quick", "messages", "refused"))
    (tmp_path / "in.jsonl").write_bytes(b"".join(b'{"n": %d}\n' % n for n in range(TOTAL)))
    checkpoints = tmp_path / "checkpoints"
    config = FlinkConfig(
        checkpoint_dir=checkpoints, checkpoint_interval_s=0.2, log_dir=flink_logs, heap_mb=768
    )

    def of_partition(data: bytes) -> bytes:
        if not quick.exists():
            time.sleep(0.002)
        number = decode(bytes(data)).fields["n"]
        return encode(Event(b"%d" % number, {}, time_ms(number), f"posts/{number % 2}@{number // 2}"))

    def start(config: FlinkConfig) -> Any:
        env = flink_environment(config)
        records = file_source(env, Files(tmp_path / "in.jsonl", Format())).map(of_partition, BYTES)
        found = clocked(
            records.set_parallelism(1), lambda event: event.raw, tolerance=Tolerance(), shards=2, name="clock"
        )
        for stream, out, text in (
            (found.messages, messages, lambda data: payload(data).decode()),
            (found.refused, refused, lambda data: decode(bytes(data)).raw.decode()),
        ):
            jsonl_sink(stream.map(text, Types.STRING()).set_parallelism(1), JsonlFiles(out))
        return env.execute_async("test")

    job = start(config)
    wait_until(lambda: len(list(read_jsonl_sink(messages))) > 100)
    job.cancel()
    with suppress(Exception):  # A cancelled job ends with an error.
        job.get_job_execution_result().result()
    quick.touch()
    restored = replace(config, restore_from=newest_checkpoint(checkpoints))
    start(restored).get_job_execution_result().result()
    wrong = [number for number in range(TOTAL) if time_ms(number) == FUTURE_MS]
    assert sorted(map(int, read_jsonl_sink(refused))) == wrong
    assert sorted(map(int, read_jsonl_sink(messages))) == sorted({*range(TOTAL)} - {*wrong})


def test_windows_close_if_a_subtask_gets_no_record(make_runs: Callable[..., Runs]) -> None:
    runs = make_runs(event_time=True, window_ms=1000, follow=True, keyed=True)
    runs.feed({"n": n, "text": f"event {n}", "key": "the only one", "at": n * 20} for n in range(160))
    job = runs.start(parallelism=2)
    # The input does not end: what closes the windows is event time, in both subtasks.
    wait_until(lambda: len(runs.results()) >= 3)
    runs.stop(job)
    assert [window["count"] for window in runs.results()] == [50, 50, 50]
