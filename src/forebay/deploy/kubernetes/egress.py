"""What the pods of pipeline and gateway may call: their own deployment, and ports of addresses that they are
given. Brokers and stores may be anywhere, but nothing else is at their ports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from forebay.deploy.kubernetes.deployment import Deployment, Job
from forebay.deploy.kubernetes.pod_settings import EnginePods, GatewayPods, PipelinePods

Rule = dict[str, Any]
API_SERVER_PORTS = (443, 6443, 8443, 16443)
API_SERVER: Rule = {"ports": [{"protocol": "TCP", "port": port} for port in API_SERVER_PORTS]}
NAME_PORTS = (53, 5353)
"""The second is that of OpenShift's DNS pods."""
NAMES: Rule = {
    "ports": [{"protocol": protocol, "port": port} for port in NAME_PORTS for protocol in ("UDP", "TCP")]
}
MAX_PORT = 65535
ANY_POD: Rule = {"to": [{"namespaceSelector": {}}]}
PORTS = {"http": 80, "ws": 80, "hdfs": 8020, "file": 0}
"""Of schemes; others are stores by HTTPS."""
HTTPS = 443
URL = re.compile(r"([a-z][a-z0-9+]*)://(?:[^/?#@]*@)?(?:\[[^\]]*\]|[^/?#:]*)(?::([0-9]{1,5}))?")
SERVERS = re.compile(r"[\w.-]+:[0-9]{1,5}(?: *, *[\w.-]+:[0-9]{1,5})*")
CALLING = ("source", "sink", "dead_letters", "assignments", "engine", "checkpoint", "journal")
"""Parts of a pipeline file that name addresses."""


def pipeline_egress(deployment: Deployment, job: Job, own: Rule, replicas: list[Rule]) -> list[Rule]:
    """Flink's processes call each other and the API server, the operators replicas."""
    spec = job.spec.model_dump(mode="json", serialize_as_any=True, include=set(CALLING))
    # A model's name such as `gpt-oss:20` looks like an address.
    spec["engine"].pop("model", None)
    anywhere = deployment.settings.inference_pool is not None or (
        deployment.settings.engine is None
        and (job.spec.engine.kubernetes is not None or job.spec.engine.ray is not None)
    )
    return [
        NAMES,
        {"to": [own, *replicas]},
        *([ANY_POD] if anywhere else []),
        _ports(job.pods, [spec, job.pods.state], API_SERVER_PORTS),
    ]


def gateway_egress(deployment: Deployment, pods: GatewayPods, replicas: list[Rule]) -> list[Rule]:
    asks = "kubernetes" in deployment.engine_place
    ports = _ports(pods, [], API_SERVER_PORTS if asks else ())
    return [NAMES, {"to": replicas}, *([ports] if ports["ports"] else [])]


def engine_egress(engine: EnginePods) -> list[Rule]:
    """Names, the ports in its settings, and the hub by HTTPS."""
    ports = _ports(engine, [list(engine.args)], (HTTPS,) if engine.egress else ())
    return [NAMES, *([ports] if ports["ports"] else [])]


def _ports(pods: PipelinePods | GatewayPods | EnginePods, values: list[Any], more: Iterable[int]) -> Rule:
    found = {*more, *pods.egress_ports, *ports_in([*values, dict(pods.env)])}
    ports = (port for port in sorted(found) if 0 < port <= MAX_PORT)
    return {"ports": [{"protocol": "TCP", "port": port} for port in ports]}


def ports_in(value: Any) -> Iterator[int]:
    """The ports of URLs, and of servers as `host:port`, in a document."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from ports_in(item)
    elif isinstance(value, str):
        if url := URL.match(value):
            yield int(url[2] or PORTS.get(url[1], HTTPS))
        elif SERVERS.fullmatch(value):
            yield from (int(server.rpartition(":")[2]) for server in value.split(","))
