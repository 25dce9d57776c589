"""Addresses for pods: each has its own network namespace, on a bridge in that of this process.

This process must be in its own namespace, too (`measure.py`), so the machine's network is out of reach.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass

from forebay.errors import LaunchError
from forebay.processes import parent_death_signal

BRIDGE = "pods"
NODE_IP = "10.244.0.1"
API_IP = "10.0.0.1"
"""Address of the Service `kubernetes`, which is in the API server's certificate."""
API_PORT = 443
FIRST_POD, LAST_POD = 2, 254


@dataclass(frozen=True, slots=True)
class Place:
    """Network of a pod: its address, and a prefix for commands that run there."""

    ip: str
    prefix: tuple[str, ...] = ()
    holder: asyncio.subprocess.Process | None = None


async def network_up() -> None:
    """Create loopback, the bridge, and the addresses of node and API server."""
    for command in (
        "ip link set lo up",
        f"ip address add {API_IP}/32 dev lo",
        f"ip link add {BRIDGE} type bridge",
        f"ip address add {NODE_IP}/24 dev {BRIDGE}",
        f"ip link set {BRIDGE} up",
    ):
        await _run(*command.split())


class PodNetwork:
    """Allocates places on a network that is up. Call it on one event loop in the main thread."""

    def __init__(self) -> None:
        self._next = FIRST_POD

    async def add(self, *, host: bool) -> Place:
        if host:
            return Place(NODE_IP)
        number, self._next = self._next, self._next + 1
        if number > LAST_POD:
            raise LaunchError(f"there are no addresses for more than {LAST_POD - FIRST_POD + 1} pods")
        ip, link = f"{NODE_IP.rpartition('.')[0]}.{number}", f"pod{number}"
        holder = await asyncio.create_subprocess_exec(
            *("unshare", "--net", "sh", "-c", "echo made; exec sleep infinity"),
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=parent_death_signal(signal.SIGKILL),
        )
        place = Place(ip, ("nsenter", "--net", f"--target={holder.pid}", "--"), holder)
        assert holder.stdout is not None
        await holder.stdout.readline()
        await _run(*f"ip link add {link} type veth peer name eth0 netns {holder.pid}".split())
        await _run(*f"ip link set {link} master {BRIDGE} up".split())
        for command in (
            "ip link set lo up",
            f"ip address add {ip}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {NODE_IP}",
        ):
            await _run(*place.prefix, *command.split())
        return place

    async def remove(self, place: Place) -> None:
        if place.holder is not None:
            with suppress(ProcessLookupError):
                place.holder.kill()
            await place.holder.wait()


async def serve_api(port: int) -> asyncio.Server:
    """Forward the address at which pods call the API server to this port of loopback."""

    async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            api_reader, api_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        # Until Python 3.12, a connection that is cancelled at the end prints a traceback.
        with suppress(asyncio.CancelledError):
            await asyncio.gather(_copy(reader, api_writer), _copy(api_reader, writer))

    return await asyncio.start_server(taken, API_IP, API_PORT)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    if process.returncode:
        raise LaunchError(f"{' '.join(command)}: {errors.decode(errors='replace').strip()}")
