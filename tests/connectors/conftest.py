"""One JVM per pytest session; jobs with exactly-once output, run to their end or until a condition."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.codec import decode
from forebay.testing.waiting import wait_until


class Show:
    """A record as one comparable line of text: class, repr, position."""

    def __call__(self, data: bytes) -> str:
        record = decode(bytes(data))
        return "\t".join(
            (type(record).__name__, repr(record.raw), str(record.time_ms), record.position or "")
        )


class Jobs:
    """Builds environments with checkpoints and output in one folder, and runs jobs in them."""

    def __init__(self, folder: Path, logs: Path) -> None:
        from forebay.flink.environment import FlinkConfig

        self.out = folder / "out"
        self.checkpoints = folder / "checkpoints"
        self.config = FlinkConfig(
            checkpoint_dir=self.checkpoints, checkpoint_interval_s=0.2, log_dir=logs, heap_mb=768
        )

    def environment(self, **changes: Any) -> Any:
        from forebay.flink.environment import flink_environment

        return flink_environment(replace(self.config, **changes))

    def rest(self, port: int) -> Any:
        """The REST service of an environment with this `rest.port`."""
        from forebay.flink.environment import embedded_rest

        return embedded_rest(self.config, port)

    def write(self, stream: Any) -> None:
        """Send a stream of encoded records to the exactly-once files under `out`."""
        from pyflink.common import Types

        from forebay.connectors.files.sink import JsonlFiles, jsonl_sink

        jsonl_sink(stream.map(Show(), Types.STRING()).set_parallelism(1), JsonlFiles(self.out))

    def lines(self) -> list[list[str]]:
        """Committed output: class, raw, time and position of each record, by file and line."""
        from forebay.connectors.files.sink import read_jsonl_sink

        return [line.decode().split("\t") for line in read_jsonl_sink(self.out)]

    def run(self, env: Any) -> list[list[str]]:
        """Run a bounded job to its end."""
        env.execute("test")
        return self.lines()

    def run_until(self, env: Any, condition: Callable[[], bool]) -> None:
        """Run a job until `condition` is true, then cancel it and wait until it is gone."""
        client = env.execute_async("test")
        end = client.get_job_execution_result()
        try:
            wait_until(lambda: end.done() or condition())
            if not condition():
                end.result()
        finally:
            if not end.done():
                client.cancel()
            with suppress(Exception):  # A cancelled job ends with an error.
                end.result()


@pytest.fixture
def jobs(tmp_path: Path, flink_logs: Path) -> Jobs:
    return Jobs(tmp_path, flink_logs)
