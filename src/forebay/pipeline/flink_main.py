"""The process that holds Flink for one attempt at a pipeline's job: its JVM, the job, and its monitoring.

It may be killed and replaced at any moment, leads a process group with its JVM, and ends with its parent.
Errors go to its log.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson


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


def main() -> None:
    # Imported here, because the command imports this module for `ChildArgs`.
    from forebay.flink.jvm import HEAP_MB, launch_jvm
    from forebay.pipeline.lease_guard import LeaseGuard
    from forebay.processes import parent_death_signal

    os.setpgid(0, 0)
    parent_death_signal(signal.SIGKILL)()
    args = ChildArgs.decode(sys.argv[1])
    if os.getppid() != args.parent:
        os._exit(1)
    log_dir = Path(args.log_dir)
    jars = [Path(jar) for jar in args.jars]
    jvm = launch_jvm(
        log_dir,
        heap_mb=HEAP_MB,
        jars=jars,
        planner=args.planner,
        archive_dir=Path(args.archive_dir),
        plugins=None if args.plugins is None else Path(args.plugins),
    )
    LeaseGuard(args.confirmations, jvm.process.pid).start()
    # Imported late: it takes half a second, during which the JVM starts.
    from forebay.flink.java_garbage import release_in_background
    from forebay.pipeline.flink_client import FlinkClient

    # The guard's thread must not wait for a JVM that it has suspended.
    release_in_background()
    FlinkClient(jvm, os.fdopen(args.reports, "wb", buffering=0), sys.stdin.buffer, log_dir).serve()


if __name__ == "__main__":
    main()
