"""The engines of a fleet on Ray, found in the status of its applications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.clients.ray.instance import ServeApplication, ServeInstance
from forebay.clients.ray.ports import DEPLOYMENT, IMPORT_PATH, MAX_PORTS, Ports
from forebay.errors import DeployError


def fleet_application(instance: ServeInstance, name: str, where: str) -> ServeApplication:
    """The application `name` that Forebay has submitted, or one of that name that is being deleted: Serve no
    longer has its origin. Raises `DeployError`, naming `where`, if there is none, or another's."""
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
    """The addresses of the engines whose replicas take requests, sorted, each once; empty for an application
    that is being deleted. Raises `DeployError` for a config that Forebay did not write."""
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
