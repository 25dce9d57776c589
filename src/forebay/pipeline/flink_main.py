"""The process that holds Flink for one attempt at a pipeline's job: its JVM, the job, and its monitoring.

It may be killed and replaced at any moment, leads a process group with its JVM, and ends with its parent.
Errors go to its log.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from forebay.flink.jvm import HEAP_MB, launch_jvm
from forebay.pipeline.flink_protocol import ChildArgs
from forebay.pipeline.lease_guard import LeaseGuard
from forebay.processes import parent_death_signal


def main() -> None:
    os.setpgid(0, 0)
    parent_death_signal(signal.SIGKILL)()
    post = ChildArgs.decode(sys.argv[1])
    if os.getppid() != post.parent:
        os._exit(1)
    log_dir = Path(post.log_dir)
    jars = [Path(jar) for jar in post.jars]
    jvm = launch_jvm(
        log_dir,
        heap_mb=HEAP_MB,
        jars=jars,
        planner=post.planner,
        archive_dir=Path(post.archive_dir),
        plugins=None if post.plugins is None else Path(post.plugins),
    )
    LeaseGuard(post.confirmations, jvm.process.pid).start()
    # Imported late: it takes half a second, during which the JVM starts.
    from forebay.flink.java_garbage import release_in_background
    from forebay.pipeline.flink_client import FlinkClient

    # The guard's thread must not wait for a JVM that it has suspended.
    release_in_background()
    FlinkClient(jvm, os.fdopen(post.reports, "wb", buffering=0), sys.stdin.buffer, log_dir).serve()


if __name__ == "__main__":
    main()
