"""`python -m benchmarks.kubernetes.worker FOLDER`: the measurement, in its own network. Started by
`measure.py`, because it configures network addresses."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from benchmarks.kubernetes.api import Api
from benchmarks.kubernetes.burst import NAMESPACE, BurstRun
from benchmarks.kubernetes.container import Image
from benchmarks.kubernetes.network import PodNetwork, network_up, serve_api
from benchmarks.kubernetes.node import ProcessNode
from benchmarks.kubernetes.plane import ControlPlane, control_plane_in, kubernetes_home
from benchmarks.kubernetes.restarts import Restarts
from benchmarks.kubernetes.variants import images, real_burst, scripted_burst
from forebay.clients.kubernetes.connection import find_cluster, open_async_client
from forebay.errors import ForebayError, SetupError
from forebay.settings import load_settings


def say(words: str) -> None:
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
    if asked["rate_per_s"] is not None:
        options = replace(options, rate=asked["rate_per_s"])
    if asked["slo_s"] is not None:
        options = replace(options, scaling={**options.scaling, "slo_s": asked["slo_s"]})
    async with node_on(plane, folder, images(folder, settings, real=real)) as api:
        report = await BurstRun(options, api, folder, say).run()
    return report.document()


def main(folder: Path) -> None:
    options = orjson.loads((folder / "options.json").read_bytes())
    home = kubernetes_home()
    if home is None:
        raise SetupError("there is no control plane")
    document: dict[str, Any] = {}
    asyncio.run(network_up())
    if options["burst"]:
        say("the control plane starts")
        with control_plane_in(folder / "plane", home, fake_pods=False) as plane:
            os.environ["KUBECONFIG"] = str(plane.kubeconfig)
            document["burst"] = asyncio.run(burst(plane, folder, options))
    if options["restarts"]:
        say("the control plane starts, with fake pods")
        with control_plane_in(folder / "restarts-plane", home) as plane:
            os.environ["KUBECONFIG"] = str(plane.kubeconfig)
            (folder / "restarts").mkdir()
            drill = Restarts(plane, folder / "restarts", say)
            document["restarts"] = asyncio.run(drill.run(options["restarts"])).document()
    (folder / "report.json").write_bytes(orjson.dumps(document))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except ForebayError as error:
        sys.exit(f"{error}")
