"""A fake replica: a server that speaks the protocol that vLLM speaks, with scripted delays and faults.

`FakeReplica` runs on the caller's event loop, `ReplicaThread` on a thread, `ReplicaProcess` in a process of
its own that can be killed; `python -m forebay.testing.replica` runs one from a shell.
"""

from forebay.testing.replica.hosts import (
    ReplicaProcess,
    ReplicaThread,
    fetch_report,
    fetch_work,
    set_speed,
)
from forebay.testing.replica.server import FakeReplica
from forebay.testing.replica.work import WorkReport
from forebay.testing.script import CallReport, ReplicaScript

__all__ = [
    "CallReport",
    "FakeReplica",
    "ReplicaProcess",
    "ReplicaScript",
    "ReplicaThread",
    "WorkReport",
    "fetch_report",
    "fetch_work",
    "set_speed",
]
