"""Java objects are released without blocking the thread that discards them."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import py4j.java_gateway
import pytest
from pyflink.java_gateway import get_gateway

from forebay.flink.jvm import jvm_process, start_jvm
from forebay.flink.sealed_gateway import release_in_background
from forebay.testing.waiting import wait_until


@pytest.mark.flink
def test_discarding_java_objects_does_not_wait_for_a_suspended_jvm(
    flink_logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[Any] = []
    clients: set[Any] = set()
    release = py4j.java_gateway._garbage_collect_object
    monkeypatch.setattr(
        py4j.java_gateway,
        "_garbage_collect_object",
        lambda client, id: (release(client, id), clients.add(client), released.append(id)),
    )
    start_jvm(flink_logs, heap_mb=768)
    release_in_background()
    made = [get_gateway().jvm.java.util.ArrayList() for _ in range(3)]
    ids = {each._target_id for each in made}
    cycle: list[Any] = [made]
    cycle.append(cycle)
    pid = jvm_process()[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        del made, cycle
        collector = threading.Thread(target=gc.collect, daemon=True)
        collector.start()
        collector.join(60)
        assert not collector.is_alive()
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: ids <= set(released))
    # Another connection is another thread of the JVM, and Flink's planner must be called on one thread.
    assert get_gateway()._gateway_client not in clients
