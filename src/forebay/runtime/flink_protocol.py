"""What a supervisor and the process that holds Flink say to each other, beside reports."""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

OUT_OF_MEMORY_STATUS = 3
"""With which a JVM ends that is told to end when its heap is full."""
GO, DRAIN, CANCEL = b"go\n", b"drain\n", b"cancel\n"
"""What the supervisor may say once it has sent the order and the replicas: submit the job, which waits for
that once it is built; have it complete what it has read; end it."""


@dataclass(frozen=True, slots=True)
class Post:
    """Where the process stands, as JSON in its only argument: its parent, the pipe that it reports on, the
    pipe of its `LeaseGuard`, the folder of its logs, that of its JVM's archive of classes, the jars on the
    class path, whether Flink's table planner is on it without them, and the folder of Flink's plugins, if
    there is one."""

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
    def decode(text: str) -> Post:
        return Post(**orjson.loads(text))


def end_of_jvm(status: int, log_dir: Path) -> str:
    """What became of a JVM that ended with `status`, in words."""
    if status == OUT_OF_MEMORY_STATUS:
        return "ran out of memory"
    if status == -signal.SIGABRT:
        return f"crashed: {log_dir}/flink-crash-*.log says where"
    return end_of(status)


def end_of(status: int) -> str:
    """What became of a process that ended with `status`, in words."""
    if status == -signal.SIGKILL:
        return "was killed (by SIGKILL: by hand, or by the system for want of memory)"
    return f"was killed (by {signal.Signals(-status).name})" if status < 0 else f"ended with status {status}"
