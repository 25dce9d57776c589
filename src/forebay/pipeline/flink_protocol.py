"""Messages, besides reports, between a supervisor and the process that holds Flink."""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

OUT_OF_MEMORY_STATUS = 3
"""Exit status of a JVM that is configured to exit when its heap is full."""
GO, DRAIN, CANCEL = b"go\n", b"drain\n", b"cancel\n"
"""Commands after the order and the replicas: submit the job, which waits for this once built; complete what
it has read; end it.
"""


@dataclass(frozen=True, slots=True)
class ChildArgs:
    """The process's configuration, JSON in its only argument.

    `parent` is a process id; `reports` and `confirmations` (for `LeaseGuard`) are pipes; `archive_dir` holds
    the JVM's class archive; `planner` adds Flink's table planner even without `jars`.
    """

    parent: int
    reports: int
    confirmations: int
    log_dir: str
    archive_dir: str
    jars: tuple[str, ...] = ()
    planner: bool = False
    plugins: str | None = None

    def encode(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @staticmethod
    def decode(text: str) -> ChildArgs:
        return ChildArgs(**orjson.loads(text))


def end_of_jvm(status: int, log_dir: Path) -> str:
    if status == OUT_OF_MEMORY_STATUS:
        return "ran out of memory"
    if status == -signal.SIGABRT:
        return f"crashed: see {log_dir}/flink-crash-*.log"
    return end_of(status)


def end_of(status: int) -> str:
    if status == -signal.SIGKILL:
        return "was killed (by SIGKILL: by hand, or by the system for want of memory)"
    return f"was killed (by {signal.Signals(-status).name})" if status < 0 else f"ended with status {status}"
