"""`forebay autoscale`: scale replicas on platforms that do not scale them."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.options import option
from forebay.cli.output import Command, Group, log_to_stderr
from forebay.errors import SettingError

if TYPE_CHECKING:
    from forebay.deploy.controller.decision import Decider

POOL = re.compile(r"(?P<name>[^=]+)(=(?P<parts>[1-9][0-9]{0,4}))?")

RequestsPerReplica = Annotated[int, option("Target number of requests in flight per replica.", min=1)]
SettleS = Annotated[
    float, option("Scale down only after fewer replicas were enough for this long.", min=0, max=3600)
]
IntervalS = Annotated[float, option("Pause between two rounds, in seconds.", min=0.1, max=60)]

autoscale = typer.Typer(
    cls=Group, help="Scale replicas to the load of a pipeline and a gateway.", no_args_is_help=True
)


@autoscale.command(cls=Command)
def kubernetes(
    deployments: Annotated[
        list[str],
        typer.Argument(
            help="Deployments to scale. If there are several, NAME=PARTS sets the share that each gets.",
            metavar="DEPLOYMENT...",
        ),
    ],
    *,
    max: Annotated[int, option("Maximum replicas, over all Deployments.", min=1)],
    pods: Annotated[
        str | None, option("Label selector of the pipeline's pods; their metrics are read.")
    ] = None,
    gateway_pods: Annotated[
        str | None, option("Label selector of the gateway's pods; their metrics are read.")
    ] = None,
    min: Annotated[int, option("Minimum replicas, over all Deployments.", min=0)] = 1,
    requests_per_replica: RequestsPerReplica = 32,
    settle_s: SettleS = 60.0,
    interval_s: IntervalS = 2.0,
    context: Annotated[
        str | None, option("Context of the kubeconfig; default: the current one, or this pod's.")
    ] = None,
    namespace: Annotated[
        str | None, option("Namespace; default: the context's.", "--namespace", "-n")
    ] = None,
) -> None:
    """Scale Deployments to the number of replicas that the metrics of a pipeline and a gateway call for.

    Runs until Ctrl-C or SIGTERM. For clusters with neither KEDA nor a metrics adapter. The loads of pipeline
    and gateway add up; while one is unknown, no replica is removed. Several Deployments share the number by
    their parts, rounded up. If several controllers run, the one that holds a Deployment's Lease scales it.
    """
    from forebay.clients.kubernetes.connection import find_cluster, open_client
    from forebay.clock import SystemClock
    from forebay.deploy.controller.cluster import ClusterCalls
    from forebay.deploy.controller.loop import Controller, ControllerScaling
    from forebay.deploy.controller.scrape import scrape
    from forebay.fleet.autoscale.base import ScalingLimits

    if pods is None and gateway_pods is None:
        raise SettingError("--pods, --gateway-pods: expected at least one of them, found none")
    limits = ScalingLimits(min, max)
    parts = _parts(deployments)
    scaling = ControllerScaling(parts, pods, limits, requests_per_replica, settle_s, gateway_pods)
    log_to_stderr()
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
    found: dict[str, int] = {}
    for each in deployments:
        form = POOL.fullmatch(each)
        if form is None or form["name"] in found:
            raise SettingError(
                f"DEPLOYMENT: expected distinct names, each alone or as NAME=PARTS with a whole number "
                f"from 1, found {each[:200]!r}"
            )
        found[form["name"]] = int(form["parts"] or 1)
    return found


@autoscale.command(cls=Command)
def ray(
    fleet: Annotated[Path, typer.Argument(help="A fleet file (YAML).", metavar="FLEET")],
    *,
    max: Annotated[int, option("Maximum replicas.", min=1)],
    metrics: Annotated[
        list[str] | None,
        option("URL of the pipeline's metrics; every address of its name is read. May be repeated."),
    ] = None,
    gateway_metrics: Annotated[
        list[str] | None, option("URL of the gateway's metrics, likewise. May be repeated.")
    ] = None,
    min: Annotated[int, option("Minimum replicas.", min=0)] = 1,
    requests_per_replica: RequestsPerReplica = 32,
    settle_s: SettleS = 60.0,
    interval_s: IntervalS = 2.0,
    address: Annotated[
        str | None, option("Address of the cluster's dashboard; default: the one in the file.")
    ] = None,
) -> None:
    """Scale a fleet on Ray to the number of replicas that the metrics of a pipeline and a gateway call for.

    Runs until Ctrl-C or SIGTERM. The loads of pipeline and gateway add up; while one is unknown, no replica
    is removed. Run only one per fleet: Serve cannot tell two of them apart.
    """
    from forebay.deploy.controller.decision import Decider
    from forebay.deploy.controller.scrape import shown
    from forebay.deploy.ray.config import load_fleet
    from forebay.fleet.autoscale.base import ScalingLimits

    # On Kubernetes, Serve is configured with the maximum number of replicas.
    decider = Decider(ScalingLimits(min, max), requests_per_replica, settle_s, begins_with_most=True)
    read = {"--metrics": metrics or [], "--gateway-metrics": gateway_metrics or []}
    if not any(read.values()):
        raise SettingError(f"{', '.join(read)}: expected at least one of them, found none")
    for name, urls in read.items():
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise SettingError(f"{name}: expected an http:// address, found {shown(url)[:200]!r}")
    spec = load_fleet(fleet, (), address)
    log_to_stderr()
    asyncio.run(_scale_on_ray(spec.address, spec.name, read, decider, interval_s))


async def _scale_on_ray(
    address: str, name: str, read: dict[str, list[str]], decider: Decider, interval_s: float
) -> None:

    from forebay.clock import SystemClock
    from forebay.deploy.controller.scrape import open_session, read_metrics
    from forebay.deploy.ray.autoscale import RayScaler

    urls, gateways, clock = read["--metrics"], read["--gateway-metrics"], SystemClock()
    async with open_session() as http:
        text_of = partial(read_metrics, http)
        scaler = RayScaler(address, name, urls, decider, clock, text_of, gateway_metrics=gateways)
        while True:
            await scaler.round()
            await asyncio.sleep(interval_s)
