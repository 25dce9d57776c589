"""Releases Java objects on a thread of its own.

Py4J (0.10.9) releases a Java object when Python discards its proxy, on the thread on which the garbage
collector runs, and waits for the JVM there. If this thread has suspended the JVM, neither continues.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue

import py4j.java_gateway
from py4j.java_gateway import GatewayClient


def release_in_background() -> None:
    """From now on, a daemon thread releases what Python discards, and no other thread waits for the JVM."""
    release = py4j.java_gateway._garbage_collect_object
    # Its `put` may be called by the garbage collector at any moment.
    discarded: SimpleQueue[tuple[GatewayClient, str]] = SimpleQueue()

    def release_all() -> None:
        # With connections of its own: each connection is a thread of the JVM, and Flink's planner must be
        # called on the thread that created it.
        own: dict[GatewayClient, GatewayClient] = {}
        while True:
            client, target_id = discarded.get()
            if client not in own:
                # Those of `flink run` may be opened at any time.
                own[client] = getattr(client, "release_client", None) or GatewayClient(
                    gateway_parameters=client.gateway_parameters
                )
            release(own[client], target_id)

    threading.Thread(target=release_all, name="java-garbage", daemon=True).start()
    py4j.java_gateway._garbage_collect_object = lambda *proxy: discarded.put(proxy)
