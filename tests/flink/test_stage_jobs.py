"""A stage in a job that is cancelled and restored without records that would wake its shards."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.testing.waiting import wait_until

pytestmark = pytest.mark.flink


def test_restored_window_closes_before_its_distant_timer(tmp_path: Path, flink_logs: Path) -> None:
    from pyflink.common import Types

    from forebay.codec import decode
    from forebay.connectors.files.sink import JsonlFiles, jsonl_sink, read_jsonl_sink
    from forebay.connectors.files.source import Files, file_source
    from forebay.connectors.formats import Format
    from forebay.flink.checkpoints import newest_checkpoint
    from forebay.flink.environment import FlinkConfig, flink_environment
    from forebay.flink.shards import flink_keys
    from forebay.flink.stages import StageFunction, message, payload, staged
    from forebay.flink.types import BYTES

    key, taken, out = flink_keys(1)[0], tmp_path / "taken", tmp_path / "out"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b'{"n": 1}\n{"n": 2}\n')
    config = FlinkConfig(
        checkpoint_dir=tmp_path / "checkpoints", checkpoint_interval_s=0.2, log_dir=flink_logs, heap_mb=768
    )

    class Waiting:
        def __init__(self) -> None:
            self.data = b""

        def take(self, data: bytes) -> list[tuple[int, bytes]]:
            self.data += data
            if self.data.count(b"}") == 2:
                taken.touch()
            return []

        def due_ms(self, data: bytes) -> None:
            return None

        def close(self, time_ms: int) -> list[tuple[int, bytes]]:
            return [(0, self.data)]

        def finish(self) -> list[tuple[int, bytes]]:
            return []

        def to_bytes(self) -> bytes:
            return self.data

        def restore(self, data: bytes) -> None:
            self.data = data

    def start(config: FlinkConfig, wait_ms: int) -> Any:
        env = flink_environment(config)
        events = file_source(env, Files(tmp_path / "in", Format(), follow=True, every_s=0.05))
        messages = events.map(lambda data: message(key, decode(data).raw), BYTES)
        function = StageFunction(lambda *_: Waiting(), shards=1, next_shards=1, wait_ms=wait_ms)
        given = staged(messages, function, parallelism=1, name="waiting")
        jsonl_sink(given.map(lambda data: payload(data).decode(), Types.STRING()), JsonlFiles(out))
        return env.execute_async("test")

    def stop(job: Any) -> None:
        job.cancel()
        with suppress(Exception):  # A cancelled job ends with an error.
            job.get_job_execution_result().result()

    # As a clock would have it that is set back by an hour before the second run.
    job = start(config, wait_ms=3_600_000)
    wait_until(taken.exists)
    seen: set[Path | None] = set()
    wait_until(lambda: seen.add(newest_checkpoint(config.checkpoint_dir)) or len(seen) >= 4)
    stop(job)
    job = start(replace(config, restore_from=newest_checkpoint(config.checkpoint_dir)), wait_ms=100)
    wait_until(lambda: len(list(read_jsonl_sink(out))) > 0)
    stop(job)
    assert list(read_jsonl_sink(out)) == [b'{"n": 1}{"n": 2}']
