"""A Py4J gateway that accepts no other clients, and releases its Java objects in the background.

Py4J (0.10.9) creates a thread for each connection before it checks its token. So all connections are opened
at once; then the JVM stops listening, and closes others'.
"""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Any

import py4j.java_gateway
from py4j.java_gateway import GatewayClient, GatewayConnection, GatewayParameters, JavaGateway
from py4j.protocol import (
    REFL_GET_UNKNOWN_SUB_COMMAND_NAME,
    REFLECTION_COMMAND_NAME,
    SUCCESS_CLASS,
    SUCCESS_PACKAGE,
    Py4JNetworkError,
)

CONNECTIONS = 10
WAIT_S = 60.0
LOOK_UP = REFLECTION_COMMAND_NAME + REFL_GET_UNKNOWN_SUB_COMMAND_NAME


class SealedClient(GatewayClient):
    """A call waits for a free connection. Raises `Py4JNetworkError` after `WAIT_S`, or if all are closed.

    The one used last is used first: Flink's planner must be called on the thread that created it.
    """

    def __init__(self, parameters: GatewayParameters, connections: int) -> None:
        super().__init__(gateway_parameters=parameters)
        self._given_back = threading.Condition()
        self._found: dict[str, str] = {}
        self.release_client: SealedClient | None = None
        self._all = tuple(self._create_connection() for _ in range(connections))
        self.deque.extend(self._all)

    def ends(self) -> set[tuple[str, int]]:
        return {connection.socket.getsockname()[:2] for connection in self._all}

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        """Cache packages and classes: Py4J asks for each part of a name, and the JVM searches all jars."""
        if (found := self._found.get(command)) is not None:
            return found
        answer = super().send_command(command, retry, binary)
        if command.startswith(LOOK_UP):
            name = command.split("\n", 3)[2]
            # What is not imported yet looks like a package, and a later import may change a short name.
            if (
                name.islower()
                if answer == SUCCESS_PACKAGE
                else "." in name and answer.startswith(SUCCESS_CLASS)
            ):
                self._found[command] = answer
        return answer

    def _get_connection(self) -> GatewayConnection:
        with self._given_back:
            if not self._given_back.wait_for(self._ready, WAIT_S):
                raise Py4JNetworkError(f"no connection to the JVM was free within {WAIT_S:.0f} s")
            if not self.is_connected or not self.deque:
                raise Py4JNetworkError("all connections to the JVM are closed; start a new process")
            return self.deque.pop()

    def _ready(self) -> bool:
        return bool(self.deque) or not self.is_connected or not any(each.is_connected for each in self._all)

    def _give_back_connection(self, connection: GatewayConnection) -> None:
        with self._given_back:
            self.deque.append(connection)
            self._given_back.notify()


class SealedGateway(JavaGateway):
    """Blocks until the JVM answers and no longer listens."""

    def __init__(self, parameters: GatewayParameters, connections: int = CONNECTIONS) -> None:
        self._connections = connections
        super().__init__(gateway_parameters=parameters)
        self._seal()

    def _create_gateway_client(self) -> SealedClient:
        client = SealedClient(self.gateway_parameters, self._connections)
        client.release_client = SealedClient(self.gateway_parameters, 1)
        return client

    def _seal(self) -> None:
        client = self._gateway_client
        ours = client.ends() | client.release_client.ends()
        server = self.java_gateway_server
        fields = server.getClass()
        self._field(fields, "sSocket").get(server).close()
        # As its last step, the thread that accepts connections removes the server from its listeners.
        while server.getListeners().contains(server):
            time.sleep(0.001)
        for connection in self.jvm.java.util.ArrayList(self._field(fields, "connections").get(server)):
            socket = connection.getSocket()
            if (socket.getInetAddress().getHostAddress(), socket.getPort()) not in ours:
                socket.close()

    @staticmethod
    def _field(fields: Any, name: str) -> Any:
        field = fields.getDeclaredField(name)
        field.setAccessible(True)
        return field


def release_in_background() -> None:
    """From now on, a daemon thread releases what Python discards.

    Py4J (0.10.9) does so on the garbage collector's thread, and waits for the JVM. If this thread has
    suspended the JVM, neither continues.
    """
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
