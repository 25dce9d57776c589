"""A Kubernetes control plane on loopback, with kubectl."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from forebay.errors import DeployError, LaunchError
from forebay.processes import parent_death_signal
from forebay.testing import wait_until

if TYPE_CHECKING:
    import httpx2


PAUSE_S = 0.2
TIMEOUT_S = 5.0


class Api:
    """Retries calls while the server is down."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def get(self, path: str) -> dict[str, Any]:
        return await self._ask("GET", path)

    async def create(self, path: str, body: Any) -> dict[str, Any]:
        return await self._ask("POST", path, body)

    async def patch(self, path: str, body: Any) -> bool:
        """Merge `body` into an object; False if it does not exist."""
        found = await self._ask("PATCH", path, body, form="application/merge-patch+json", gone_ok=True)
        return bool(found)

    async def delete(self, path: str, *, grace_s: int | None = None) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions"}
        more = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        await self._ask("DELETE", path, {**body, **more}, gone_ok=True)

    async def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        form: str = "application/json",
        gone_ok: bool = False,
    ) -> dict[str, Any]:
        import httpx2

        content = None if body is None else orjson.dumps(body)
        while True:
            try:
                answer = await self.http.request(
                    method, path, content=content, headers={"content-type": form}, timeout=TIMEOUT_S
                )
            except httpx2.TransportError:
                await asyncio.sleep(PAUSE_S)
                continue
            if answer.status_code in (429, 500, 502, 503, 504):
                await asyncio.sleep(PAUSE_S)
                continue
            if answer.status_code == 404 and gone_ok:
                return {}
            if not answer.is_success:
                raise DeployError(f"{method} {path}: {answer.status_code}: {answer.text[:500]}")
            return dict(orjson.loads(answer.content))


VARIABLE = "FOREBAY_KUBERNETES_HOME"
NEAR = Path(__file__).parents[3] / "shared" / "k8s"
MISSING = f"no Kubernetes control plane: {VARIABLE} is not set and ../shared/k8s is missing"


def kubernetes_home() -> Path | None:
    """Folder with the control plane's programs and the operators' resource definitions."""
    named = os.environ.get(VARIABLE)
    home = Path(named) if named else NEAR
    return home if (home / "kube").is_file() else None


class ControlPlane:
    def __init__(self, home: Path, folder: Path) -> None:
        self._program = [sys.executable, str(home / "kube")]
        self._folder = folder
        self.kubeconfig = folder / "kubeconfig"

    def run(self, verb: str, *words: str) -> str:
        command = [*self._program, verb, str(self._folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise LaunchError(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def kubectl(self, *words: str) -> str:
        return self.run("ctl", *words)

    def create(self, name: str, body: object) -> None:
        path = self._folder / f"{name}.json"
        path.write_bytes(orjson.dumps(body))
        self.kubectl("create", "-f", str(path))


def _all_established(plane: ControlPlane) -> bool:
    found = orjson.loads(plane.kubectl("get", "crd", "-o", "json"))["items"]
    conditions = [item.get("status", {}).get("conditions") or () for item in found]
    return all(any(c["type"] == "Established" and c["status"] == "True" for c in each) for each in conditions)


@contextmanager
def control_plane_in(folder: Path, home: Path, *, fake_pods: bool = True) -> Iterator[ControlPlane]:
    """A control plane during the block, with the resources of Flink's operator, KEDA and others."""
    plane = ControlPlane(home, folder)
    plane.run("up", *(() if fake_pods else ("--no-fake-pods",)))
    try:
        for definition in sorted((home / "crds").iterdir()):
            plane.kubectl("apply", "--server-side", "-f", str(definition))
        wait_until(lambda: _all_established(plane))
        yield plane
    finally:
        plane.run("down")


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
    for command in (
        "ip link set lo up",
        f"ip address add {API_IP}/32 dev lo",
        f"ip link add {BRIDGE} type bridge",
        f"ip address add {NODE_IP}/24 dev {BRIDGE}",
        f"ip link set {BRIDGE} up",
    ):
        await _run(*command.split())


class PodNetwork:
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
