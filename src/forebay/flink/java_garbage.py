"""Releases Java objects on a thread of its own.

Py4J (0.10.9) releases a Java object when Python discards its proxy, on the thread on which the garbage
collector runs, and waits for the JVM there. If this thread has suspended the JVM, neither continues.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import py4j.java_gateway

Discarded = tuple[Any, ...]


def release_in_background() -> None:
    """From now on, a daemon thread releases what Python discards, and no other thread waits for the JVM."""
    release = py4j.java_gateway._garbage_collect_object
    # Its `put` may be called by the garbage collector at any moment.
    discarded: SimpleQueue[Discarded] = SimpleQueue()

    def release_all() -> None:
        while True:
            release(*discarded.get())

    threading.Thread(target=release_all, name="java-garbage", daemon=True).start()
    py4j.java_gateway._garbage_collect_object = lambda *proxy: discarded.put(proxy)
