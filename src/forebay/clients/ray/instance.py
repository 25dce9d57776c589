"""The status of Ray Serve's applications, and the engines of a fleet in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.clients.ray import DEPLOYMENT, IMPORT_PATH, MAX_PORTS, Ports
from forebay.errors import DeployError
from forebay.untrusted_text import replace_controls

RUNNING, RECOVERING, DELETING, DEPLOY_FAILED = "RUNNING", "RECOVERING", "DELETING", "DEPLOY_FAILED"
SERVING = (RUNNING, "UPDATING", "PENDING_MIGRATION")
DECLARATIVE = "declarative"
MAX_DETAIL_CHARS = 2000


@dataclass(frozen=True, slots=True)
class ServeReplica:
    name: str
    state: str
    node_ip: str | None
    pid: int | None


@dataclass(frozen=True, slots=True)
class ServeDeployment:
    status: str
    trigger: str
    message: str
    target: int
    replicas: tuple[ServeReplica, ...]

    def running(self) -> tuple[ServeReplica, ...]:
        return tuple(each for each in self.replicas if each.state == RUNNING)

    def serving(self) -> tuple[ServeReplica, ...]:
        return tuple(each for each in self.replicas if each.state in SERVING)

    @property
    def recovering(self) -> bool:
        return any(each.state == RECOVERING for each in self.replicas)


@dataclass(frozen=True, slots=True)
class ServeApplication:
    """`config`: as submitted; None if it came from a program or is being deleted. `deployed_s`: by the
    cluster's clock."""

    name: str
    status: str
    message: str
    deployed_s: float
    config: Mapping[str, Any] | None
    deployments: Mapping[str, ServeDeployment]
    source: str = ""

    @property
    def deleting(self) -> bool:
        return self.status == DELETING


@dataclass(frozen=True, slots=True)
class ServeInstance:
    applications: Mapping[str, ServeApplication]
    settings: Mapping[str, Any]

    @classmethod
    def parse(cls, body: Any) -> ServeInstance:
        try:
            applications = {
                str(name): _application(str(name), found) for name, found in body["applications"].items()
            }
            kept = ("proxy_location", "http_options", "grpc_options", "target_capacity")
            settings = {name: body[name] for name in kept if body.get(name) is not None}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DeployError(
                f"the status of Ray Serve's applications has an unknown form: {type(error).__name__}: {error}"
            ) from None
        return cls(applications, settings)

    @property
    def capacity_percent(self) -> float:
        """Share of the replicas that Serve starts: below 100 while another cluster takes over."""
        found = self.settings.get("target_capacity", 100.0)
        return float(found) if isinstance(found, int | float) else 100.0


def _application(name: str, body: Mapping[str, Any]) -> ServeApplication:
    config = body.get("deployed_app_config")
    if config is not None and not isinstance(config, Mapping):
        raise TypeError("expected the config of an application to be a mapping")
    return ServeApplication(
        name,
        str(body["status"]),
        plain(body.get("message")),
        float(body.get("last_deployed_time_s") or 0.0),
        config,
        {str(key): _deployment(found) for key, found in body["deployments"].items()},
        str(body.get("source") or ""),
    )


def _deployment(body: Mapping[str, Any]) -> ServeDeployment:
    replicas = tuple(
        ServeReplica(
            str(each["replica_id"]),
            str(each["state"]),
            None if each.get("node_ip") is None else str(each["node_ip"]),
            None if each.get("pid") is None else int(each["pid"]),
        )
        for each in body["replicas"]
    )
    return ServeDeployment(
        str(body["status"]),
        str(body.get("status_trigger") or ""),
        plain(body.get("message")),
        int(body["target_num_replicas"]),
        replicas,
    )


def plain(text: object) -> str:
    """On one line, cut at the start: a traceback has its error at the end."""
    words = " ".join(replace_controls(str(text or "")).split())
    return words if len(words) <= MAX_DETAIL_CHARS else f"…{words[-MAX_DETAIL_CHARS:]}"


def fleet_application(instance: ServeInstance, name: str, where: str) -> ServeApplication:
    """Forebay's application `name`, or one of that name that is being deleted: Serve no longer has its
    origin. Raises `DeployError`.
    """
    found = instance.applications.get(name)
    if found is None:
        there = ", ".join(sorted(instance.applications)) or "none"
        raise DeployError(
            f"{where} has no application {name}; there are: {there}. `forebay deploy ray` puts it there"
        )
    if not found.deleting and not is_fleet(found.config):
        raise DeployError(f"{where}: the application {name} is not a fleet of Forebay; name another one")
    return found


def is_fleet(config: Mapping[str, Any] | None) -> bool:
    return config is not None and config.get("import_path") == IMPORT_PATH


def engine_urls(application: ServeApplication) -> tuple[str, ...]:
    """Those that take requests, sorted; none while the application is being deleted. Raises `DeployError`."""
    if application.deleting:
        return ()
    ports = _ports(application)
    deployment = application.deployments.get(DEPLOYMENT)
    serving = () if deployment is None else deployment.serving()
    found = {
        f"http://{_host(each.node_ip)}:{ports.of(each.pid)}"
        for each in serving
        if each.node_ip is not None and each.pid is not None
    }
    return tuple(sorted(found))


def _ports(application: ServeApplication) -> Ports:
    try:
        arguments = (application.config or {})["args"]
        first, many = arguments["first_port"], arguments["ports"]
        if not (type(first) is int and type(many) is int and first > 0 and 0 < many <= MAX_PORTS):
            raise TypeError
        return Ports(first, many)
    except (KeyError, TypeError):
        raise DeployError(
            f"the application {application.name} has no ports of its engines in its config; deploy it "
            f"again with `forebay deploy ray`"
        ) from None


def _host(address: str | None) -> str:
    return f"[{address}]" if address is not None and ":" in address else str(address)
