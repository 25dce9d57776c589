"""Starts the whole measurement in its own network."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from benchmarks.kubernetes.burst import NAMESPACE, BurstRun
from benchmarks.kubernetes.container import Image, images, real_burst, scripted_burst
from benchmarks.kubernetes.node import ProcessNode
from benchmarks.kubernetes.plane import MISSING as NO_PLANE
from benchmarks.kubernetes.plane import (
    Api,
    ControlPlane,
    PodNetwork,
    control_plane_in,
    kubernetes_home,
    network_up,
    serve_api,
)
from benchmarks.kubernetes.restarts import Restarts
from forebay.clients.kubernetes.connection import find_cluster, open_async_client
from forebay.errors import ForebayError, LaunchError, SetupError
from forebay.processes import parent_death_signal
from forebay.settings import load_settings

ROOT = Path(__file__).parents[2]


def measure_kubernetes(
    folder: Path,
    *,
    real: bool,
    burst: bool = True,
    restarts: int = 0,
    note: Callable[[str], None] = lambda words: None,
) -> dict[str, Any]:
    way = isolated()
    if way is None:
        raise SetupError(MISSING)
    if kubernetes_home() is None:
        raise SetupError(NO_PLANE)
    asked = {"real": real, "burst": burst, "restarts": restarts}
    (folder / "options.json").write_bytes(orjson.dumps(asked))
    command = [*way, sys.executable, "-m", "benchmarks.kubernetes.measure", str(folder)]
    errors = folder / "errors.txt"
    with errors.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            preexec_fn=parent_death_signal(signal.SIGKILL),  # noqa: PLW1509
        )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            note(line.strip())
        status = process.wait()
    finally:
        # All its processes end with it.
        process.kill()
        process.wait()
    if status:
        detail = errors.read_text(errors="replace").strip()
        raise LaunchError(f"the measurement ended with status {status}: {detail[-2000:]}")
    found: dict[str, Any] = orjson.loads((folder / "report.json").read_bytes())
    return found


COMMON = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
WAYS = ((*COMMON, "--map-root-user"), COMMON)
"""As any user if the machine allows user namespaces, else as root."""


@cache
def isolated() -> tuple[str, ...] | None:
    """Prefix for a command that gives it its own network and process numbers; None if this machine
    does not allow it."""
    if any(shutil.which(name) is None for name in ("unshare", "nsenter", "ip")):
        return None
    probe = ("sh", "-c", "ip link add probe type veth peer name eborp")
    for way in WAYS:
        if subprocess.run([*way, *probe], capture_output=True, check=False).returncode == 0:
            return way
    return None


MISSING = (
    "this machine allows no network namespaces (unshare --net --map-root-user), or has no iproute2; "
    "pods cannot have addresses"
)


def note(words: str) -> None:
    print(words, flush=True)


@asynccontextmanager
async def node_on(
    plane: ControlPlane, folder: Path, chosen: Mapping[str, Image]
) -> AsyncGenerator[Api, None]:
    """A node whose pods are processes, in the namespace of the run."""
    config = orjson.loads(plane.kubeconfig.read_bytes())["clusters"][0]["cluster"]
    server = await serve_api(urlsplit(config["server"]).port or 443)
    async with open_async_client(find_cluster()) as http:
        api = Api(http)
        await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        authority = Path(config["certificate-authority"])
        node = ProcessNode(
            api, PodNetwork(), chosen, namespace=NAMESPACE, folder=folder / "pods", authority=authority
        )
        running = asyncio.create_task(node.run())
        try:
            yield api
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            server.close()


async def burst(plane: ControlPlane, folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A burst on pods that are processes; returns the report's document."""
    settings, real = load_settings(), bool(asked["real"])
    options = real_burst(settings) if real else scripted_burst()
    async with node_on(plane, folder, images(folder, settings, real=real)) as api:
        report = await BurstRun(options, api, folder, note).run()
    return report.document()


def main(folder: Path) -> None:
    options = orjson.loads((folder / "options.json").read_bytes())
    home = kubernetes_home()
    if home is None:
        raise SetupError("there is no control plane")
    document: dict[str, Any] = {}
    asyncio.run(network_up())
    if options["burst"]:
        note("the control plane starts")
        with control_plane_in(folder / "plane", home, fake_pods=False) as plane:
            os.environ["KUBECONFIG"] = str(plane.kubeconfig)
            document["burst"] = asyncio.run(burst(plane, folder, options))
    if options["restarts"]:
        note("the control plane starts, with fake pods")
        with control_plane_in(folder / "restarts-plane", home) as plane:
            os.environ["KUBECONFIG"] = str(plane.kubeconfig)
            (folder / "restarts").mkdir()
            drill = Restarts(plane, folder / "restarts", note)
            document["restarts"] = asyncio.run(drill.run(options["restarts"])).document()
    (folder / "report.json").write_bytes(orjson.dumps(document))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except ForebayError as error:
        sys.exit(f"{error}")
