"""`forebay autoscale`: scale replicas on platforms that do not scale them."""

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
    int, typer.Option(min=1, help="Target number of requests in flight per replica.")
]
SettleS = Annotated[
    float,
    typer.Option(min=0, max=3600, help="Scale down only after fewer replicas were enough for this long."),
]
IntervalS = Annotated[float, typer.Option(min=0.1, max=60, help="Pause between two rounds, in seconds.")]

autoscale = typer.Typer(
    cls=Group, help="Scale replicas to the load of a pipeline and a gateway.", no_args_is_help=True
)


@autoscale.callback()
def _autoscale() -> None:
    """Scale replicas to the load of a pipeline and a gateway."""


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
    max: Annotated[int, typer.Option(min=1, help="Maximum replicas, over all Deployments.")],
    pods: Annotated[
        str | None, typer.Option(help="Label selector of the pipeline's pods; their metrics are read.")
    ] = None,
    gateway_pods: Annotated[
        str | None, typer.Option(help="Label selector of the gateway's pods; their metrics are read.")
    ] = None,
    min: Annotated[int, typer.Option(min=0, help="Minimum replicas, over all Deployments.")] = 1,
    requests_per_replica: RequestsPerReplica = 32,
    settle_s: SettleS = 60.0,
    interval_s: IntervalS = 2.0,
    context: Annotated[
        str | None, typer.Option(help="Context of the kubeconfig; default: the current one, or this pod's.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace; default: the context's.")
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
    from forebay.fleet.autoscale.base import Limits

    if pods is None and gateway_pods is None:
        raise SettingError("--pods, --gateway-pods: expected at least one of them, found none")
    limits = Limits(min, max)
    scaling = ControllerScaling(
        _parts(deployments), pods, limits, requests_per_replica, settle_s, gateway_pods
    )
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
    max: Annotated[int, typer.Option(min=1, help="Maximum replicas.")],
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            help="URL of the pipeline's Prometheus metrics; every address of the name is read. "
            "May be repeated."
        ),
    ] = None,
    gateway_metrics: Annotated[
        list[str] | None, typer.Option(help="URL of the gateway's metrics, likewise. May be repeated.")
    ] = None,
    min: Annotated[int, typer.Option(min=0, help="Minimum replicas.")] = 1,
    requests_per_replica: RequestsPerReplica = 32,
    settle_s: SettleS = 60.0,
    interval_s: IntervalS = 2.0,
    address: Annotated[
        str | None, typer.Option(help="Address of the cluster's dashboard; default: the one in the file.")
    ] = None,
) -> None:
    """Scale a fleet on Ray to the number of replicas that the metrics of a pipeline and a gateway call for.

    Runs until Ctrl-C or SIGTERM. The loads of pipeline and gateway add up; while one is unknown, no replica
    is removed. Run only one per fleet: Serve cannot tell two of them apart.
    """
    import asyncio

    from forebay.deploy.controller.decision import Decider
    from forebay.deploy.controller.scrape import shown
    from forebay.deploy.ray.config import load_fleet
    from forebay.fleet.autoscale.base import Limits

    # On Kubernetes, Serve is configured with the maximum number of replicas.
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

    from forebay.clock import SystemClock
    from forebay.deploy.controller.scrape import open_session, read_metrics
    from forebay.deploy.ray.autoscale import RayScaler

    async with open_session() as http:
        scaler = RayScaler(
            address,
            name,
            read["--metrics"],
            decider,
            SystemClock(),
            partial(read_metrics, http),
            gateway_metrics=read["--gateway-metrics"],
        )
        while True:
            await scaler.round()
            await asyncio.sleep(interval_s)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
