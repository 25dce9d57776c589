"""The process between an owner and its replica; it runs exactly as long as the replica may.

It starts the server in its own session, and adopts the server's orphans (Linux). It ends them all on SIGTERM,
when the server ends, and when its owner dies (end of its standard input), unless the registry has it as
`kept`.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson
import psutil

from forebay.engine.launch.registry import ReplicaRegistry
from forebay.processes import descendants, kill, parent_death_signal, session_members, terminate, wait_gone

PR_SET_CHILD_SUBREAPER = 36
LOOK_S = 0.2
ORPHANS_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class SupervisorArgs:
    replica_id: str
    registry: str
    owner_pid: int
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    grace_s: float = 10.0

    def encode(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @staticmethod
    def decode(text: str) -> SupervisorArgs:
        return SupervisorArgs(**orjson.loads(text))


def main() -> int:
    order = SupervisorArgs.decode(sys.argv[1])
    stop_requested = [False]

    def stop(signum: int, frame: object) -> None:
        stop_requested[0] = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    _adopt_orphans()
    if order.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, order.cores)
    server = _start(order)
    registry, owned = ReplicaRegistry(Path(order.registry)), True
    while server.poll() is None and not stop_requested[0]:
        if not owned:
            select.select([], [], [], LOOK_S)
        elif _owner_is_gone(order.owner_pid):
            if not registry.kept(order.replica_id):
                break
            owned = False
    status = server.poll()
    _end_all(server, order.grace_s)
    server.poll()
    return status if status is not None and status >= 0 else 1


def _start(order: SupervisorArgs) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        order.command,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **order.environment},
        # Last resort, if the supervisor itself is killed: the kernel sends the server a SIGTERM.
        preexec_fn=parent_death_signal(signal.SIGTERM),  # noqa: PLW1509 - this process has one thread
    )


def _owner_is_gone(owner_pid: int) -> bool:
    # The parent's process id also detects a dead owner whose forked children hold the pipe open.
    readable, _, _ = select.select([0], [], [], LOOK_S)
    return bool(readable) or os.getppid() != owner_pid


def _end_all(server: subprocess.Popen[bytes], grace_s: float) -> None:
    # The server first and alone: it ends its own workers in order and frees their shared memory.
    server.terminate()
    wait_gone({process for process in _others() if process.pid == server.pid}, grace_s)
    terminate(_others())
    wait_gone(_others(), ORPHANS_GRACE_S)
    # Listed again: a process may have started while the others were ending.
    while left := _others():
        kill(left)


def _others() -> set[psutil.Process]:
    me = os.getpid()
    return {process for process in session_members(me) | descendants(me) if process.pid != me}


def _adopt_orphans() -> None:
    libc = _libc()
    if libc is not None:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


if __name__ == "__main__":
    raise SystemExit(main())
