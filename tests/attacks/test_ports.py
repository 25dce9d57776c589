"""Another user of this machine sends bytes without end to each port of a running pipeline."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psutil
import pytest

from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

from .other_user import BASH, as_attacker

CONNECTIONS = 4
SENT_MB = 64
GROWTH_MB = 150
EVENTS = 60


def listening(processes: list[psutil.Process]) -> set[int]:
    return {
        each.laddr.port
        for process in processes
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }


FLOOD = 'exec 3<>"/dev/tcp/127.0.0.1/$1" && head -c "$2" /dev/zero >&3'


def flood(port: int) -> None:
    if BASH is not None and os.getuid() == 0:
        as_attacker(FLOOD, port, SENT_MB << 20)
        return
    # The same as this user, if this one cannot be another.
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
        for _ in range(SENT_MB):
            stranger.sendall(b"x" * (1 << 20))


@pytest.mark.flink
@pytest.mark.slow
def test_endless_bytes_do_not_fill_a_pipelines_memory(pipelines: Any) -> None:
    pipelines.write(*({"id": str(n), "text": f"t{n}"} for n in range(EVENTS)))
    grown: list[float] = []

    def attack(now: Any) -> None:
        if now.state != "RUNNING" or not pipelines.lines() or grown:
            return
        processes = psutil.Process().children(recursive=True)
        ports = listening(processes)
        before = sum(process.memory_info().rss for process in processes)
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for _ in pool.map(flood, sorted(ports) * CONNECTIONS):
                pass
        grown.append((sum(process.memory_info().rss for process in processes) - before) / 1e6)

    with ReplicaThread(ReplicaScript(delay=Fixed(0.2))) as replica:
        last = pipelines.run(pipelines.spec(capacity=4), replica.url, watch=attack, in_process=False)
    assert last.state == "FINISHED"
    ids = [line["id"] for line in pipelines.lines()]
    assert len(ids) == len(set(ids)) == EVENTS
    assert grown
    assert grown[0] < GROWTH_MB
