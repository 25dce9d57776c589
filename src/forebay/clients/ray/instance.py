"""The status of a Ray cluster's applications, as of Ray Serve's REST interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.errors import DeployError
from forebay.untrusted_text import replace_controls

RUNNING, RECOVERING, DELETING, DEPLOY_FAILED = "RUNNING", "RECOVERING", "DELETING", "DEPLOY_FAILED"
SERVING = (RUNNING, "UPDATING", "PENDING_MIGRATION")
"""States of a replica that has started and was not asked to stop."""
DECLARATIVE = "declarative"
MAX_SAID = 2000


@dataclass(frozen=True, slots=True)
class ServeReplica:
    """A replica of a deployment: the address of its node and its process id there, both None until it has
    started."""

    name: str
    state: str
    node_ip: str | None
    pid: int | None


@dataclass(frozen=True, slots=True)
class ServeDeployment:
    """A deployment: its target number of replicas, and its replicas in any state. `trigger` is the reason of
    its status."""

    status: str
    trigger: str
    message: str
    target: int
    replicas: tuple[ServeReplica, ...]

    def running(self) -> tuple[ServeReplica, ...]:
        """Running replicas that are neither being changed nor about to be replaced."""
        return tuple(each for each in self.replicas if each.state == RUNNING)

    def serving(self) -> tuple[ServeReplica, ...]:
        """The replicas that take requests: running ones, and those that are being changed or wait until their
        replacement has started."""
        return tuple(each for each in self.replicas if each.state in SERVING)

    @property
    def recovering(self) -> bool:
        """Whether Serve has restarted and has not found its running replicas yet."""
        return any(each.state == RECOVERING for each in self.replicas)


@dataclass(frozen=True, slots=True)
class ServeApplication:
    """An application. `config` is what was submitted, None if it came from a program or is being deleted;
    `deployed_s` is when, in seconds of the cluster's clock. It has no deployments while Serve builds it."""

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
    """All applications, by name, and their common settings. `settings` is what a submission has to repeat to
    keep them; empty if Serve does not run yet."""

    applications: Mapping[str, ServeApplication]
    settings: Mapping[str, Any]

    @classmethod
    def parse(cls, body: Any) -> ServeInstance:
        """From the body of `GET /api/serve/applications/`. Raises `DeployError` for another form."""
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
        """The share of every deployment's replicas that Serve itself starts, by its submission: below 100
        while another cluster takes over."""
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
    """Text of the cluster on one line, cut at the start: a traceback has its error at the end."""
    words = " ".join(replace_controls(str(text or "")).split())
    return words if len(words) <= MAX_SAID else f"…{words[-MAX_SAID:]}"
