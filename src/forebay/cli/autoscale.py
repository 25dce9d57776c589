"""`forebay autoscale`: what scales replicas on a platform that does not by itself."""

from __future__ import annotations

import logging
import re
import socket
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.output import Command, Group
from forebay.errors import SettingError
from forebay.untrusted_text import PlainFormatter

if TYPE_CHECKING:
    from forebay.deploy.controller.decision import Decider

POOL = re.compile(r"(?P<name>[^=]+)(=(?P<parts>[1-9][0-9]{0,4}))?")

RequestsPerReplica = Annotated[
    int, typer.Option(min=1, help="Requests in flight that one replica takes well.")
]
SettleS = Annotated[
    float, typer.Option(min=0, max=3600, help="How long fewer replicas must have been enough.")
]
IntervalS = Annotated[float, typer.Option(min=0.1, max=60, help="Pause between two rounds.")]

autoscale = typer.Typer(
    cls=Group, help="Scale replicas by the load of a pipeline and a gateway.", no_args_is_help=True
)


@autoscale.callback()
def _autoscale() -> None:
    """Scale replicas by the load of a pipeline and a gateway."""


@autoscale.command(cls=Command)
def kubernetes(
    deployments: Annotated[
        list[str],
        typer.Argument(
            help="Deployments to scale; of several, NAME=PARTS says which part of the replicas it gets.",
            metavar="DEPLOYMENT...",
        ),
    ],
    *,
    max: Annotated[int, typer.Option(min=1, help="Most replicas, of all Deployments together.")],
    pods: Annotated[
        str | None, typer.Option(help="Label selector of the pipeline's pods, whose metrics are read.")
    ] = None,
    gateway_pods: Annotated[
        str | None, typer.Option(help="Label selector of the gateway's pods, whose metrics are read.")
    ] = None,
    min: Annotated[int, typer.Option(min=0, help="Fewest replicas, of all Deployments together.")] = 1,
    requests_per_replica: RequestsPerReplica = 32,
    settle_s: SettleS = 60.0,
    interval_s: IntervalS = 2.0,
    context: Annotated[
        str | None, typer.Option(help="Context of the kubeconfig; by default the current one, or this pod's.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace; by default that of the context.")
    ] = None,
) -> None:
    """Scale Deployments to the number of replicas that the metrics of a pipeline and a gateway ask for, until
    Ctrl-C or SIGTERM.

    For clusters with neither KEDA nor an adapter of metrics. The loads of pipeline and gateway add up. While
    one is not known, no replica is taken away. Of several Deployments, each gets its part of the number,
    rounded up. Of several controllers, the one that holds a Deployment's Lease scales it.
    """
    from forebay.autoscale.base import Limits
    from forebay.clock import SystemClock
    from forebay.deploy.controller.cluster import ClusterCalls
    from forebay.deploy.controller.loop import Controller, Scaling
    from forebay.deploy.controller.scrape import scrape
    from forebay.kube.connection import find_cluster, open_client

    if pods is None and gateway_pods is None:
        raise SettingError("--pods, --gateway-pods: expected at least one of them, found none")
    limits = Limits(min, max)
    scaling = Scaling(_parts(deployments), pods, limits, requests_per_replica, settle_s, gateway_pods)
    _log_to_stderr()
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    config = find_cluster(context)
    with open_client(config) as http:
        calls = ClusterCalls(http, namespace or config.namespace)
        identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        controller = Controller(scaling, calls, scrape, SystemClock(), identity)
        try:
            while True:
                controller.round()
                time.sleep(interval_s)
        finally:
            controller.release()


def _parts(deployments: list[str]) -> dict[str, int]:
    """By name, the parts that a Deployment gets of the wanted replicas. Raises `SettingError`."""
    found: dict[str, int] = {}
    for each in deployments:
        form = POOL.fullmatch(each)
        if form is None or form["name"] in found:
            raise SettingError(
                f"DEPLOYMENT: expected names that differ, each alone or as NAME=PARTS with a whole number "
                f"from 1, found {each[:200]!r}"
            )
        found[form["name"]] = int(form["parts"] or 1)
    return found


@autoscale.command(cls=Command)
def ray(
    fleet: Annotated[Path, typer.Argument(help="A fleet file (YAML).", metavar="FLEET")],
    *,
    max: Annotated[int, typer.Option(min=1, help="Most replicas.")],
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            help="URL of the pipeline's metrics, as Prometheus reads them: each address of the name. May be "
            "repeated."
        ),
    ] = None,
    gateway_metrics: Annotated[
        list[str] | None, typer.Option(help="URL of the gateway's metrics, likewise. May be repeated.")
    ] = None,
    min: Annotated[int, typer.Option(min=0, help="Fewest replicas.")] = 1,
    requests_per_replica: RequestsPerReplica = 32,
    settle_s: SettleS = 60.0,
    interval_s: IntervalS = 2.0,
    address: Annotated[
        str | None, typer.Option(help="Address of the cluster's dashboard; by default that of the file.")
    ] = None,
) -> None:
    """Scale a fleet on Ray to the number of replicas that the metrics of a pipeline and a gateway ask for,
    until Ctrl-C or SIGTERM.

    The loads of pipeline and gateway add up. While one is not known, no replica is taken away. Run one for a
    fleet: Serve cannot tell two of them apart.
    """
    import asyncio

    from forebay.autoscale.base import Limits
    from forebay.deploy.controller.decision import Decider
    from forebay.deploy.controller.exposition import shown
    from forebay.deploy.ray.load import load_fleet

    # On Kubernetes Serve is configured with the most replicas.
    decider = Decider(Limits(min, max), requests_per_replica, settle_s, begins_with_most=True)
    read = {"--metrics": metrics or [], "--gateway-metrics": gateway_metrics or []}
    if not any(read.values()):
        raise SettingError(f"{', '.join(read)}: expected at least one of them, found none")
    for option, urls in read.items():
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise SettingError(f"{option}: expected an http:// address, found {shown(url)[:200]!r}")
    spec = load_fleet(fleet, (), address)
    _log_to_stderr()
    asyncio.run(_scale_on_ray(spec.address, spec.name, read, decider, interval_s))


async def _scale_on_ray(
    address: str, name: str, read: dict[str, list[str]], decider: Decider, interval_s: float
) -> None:
    import asyncio
    from functools import partial

    import aiohttp

    from forebay.clock import SystemClock
    from forebay.deploy.ray.autoscale import RayScaler, read_text

    async with aiohttp.ClientSession() as http:
        scaler = RayScaler(
            address,
            name,
            read["--metrics"],
            decider,
            SystemClock(),
            partial(read_text, http),
            gateway_metrics=read["--gateway-metrics"],
        )
        while True:
            await scaler.round()
            await asyncio.sleep(interval_s)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
