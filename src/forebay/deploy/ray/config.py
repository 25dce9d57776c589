"""Ray Serve's config for `serve deploy` and its REST interface. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.clients.ray.engines import is_fleet
from forebay.clients.ray.instance import DECLARATIVE
from forebay.clients.ray.ports import DEPLOYMENT, IMPORT_PATH
from forebay.deploy.ray.stats import STATS_PERIOD_S
from forebay.errors import DeployError, SettingError
from forebay.yaml_document import to_yaml

if TYPE_CHECKING:
    from forebay.clients.ray.instance import ServeApplication, ServeInstance
    from forebay.deploy.ray.settings import RayFleetSpec

AFTER_DRAIN_S = 10
HEALTH_TIMEOUT_S = 10
ROUTER = "forebay.deploy.ray.router.FleetRouter"
PORT_KEYS = ("first_port", "ports")


def serve_application(
    name: str, import_path: str, args: Mapping[str, Any], *, route_prefix: str | None
) -> dict[str, Any]:
    return {
        "name": name,
        "route_prefix": route_prefix,
        "import_path": import_path,
        "args": dict(args),
    }


def fleet_config(spec: RayFleetSpec) -> dict[str, Any]:
    """The fleet as an application. It has no route: tokens do not pass through Serve's proxies."""
    arguments = {
        "command": [*(word.replace("{model}", spec.model) for word in spec.command), *spec.args],
        "first_port": spec.first_port,
        "ports": spec.ports,
        "startup_s": spec.startup_s,
        "drain_s": spec.drain_s,
    }
    actor: dict[str, Any] = {"num_cpus": spec.cpu}
    if spec.gpu:
        actor["num_gpus"] = spec.gpu
    if spec.resources:
        actor["resources"] = dict(spec.resources)
    made = serve_application(spec.name, IMPORT_PATH, arguments, route_prefix=None)
    if spec.env:
        made["runtime_env"] = {"env_vars": dict(spec.env)}
    deployment = {
        "name": DEPLOYMENT,
        "num_replicas": spec.replicas,
        "ray_actor_options": actor,
        "health_check_period_s": spec.health_period_s,
        "health_check_timeout_s": HEALTH_TIMEOUT_S,
        "graceful_shutdown_timeout_s": spec.drain_s + AFTER_DRAIN_S,
        "max_ongoing_requests": spec.max_ongoing,
    }
    if spec.router == "forebay":
        deployment["request_router_config"] = {
            "request_router_class": ROUTER,
            "request_routing_stats_period_s": STATS_PERIOD_S,
        }
    return made | {"external_scaler_enabled": True, "deployments": [deployment]}


def whole_config(spec: RayFleetSpec) -> dict[str, Any]:
    """The fleet alone, as a file for `serve deploy`."""
    return {"proxy_location": spec.proxies, "applications": [fleet_config(spec)]}


def with_fleet(instance: ServeInstance, spec: RayFleetSpec) -> dict[str, Any]:
    """The config with the fleet added or replaced, and other applications as submitted. An existing fleet
    keeps its number of replicas.

    Raises `DeployError` if another application has the name, the fleet is being removed, or its ports change.
    """
    found = instance.applications.get(spec.name)
    made = fleet_config(spec)
    if found is not None:
        if found.deleting:
            raise DeployError(f"{spec.name}: it is still being removed; submit it again when it is gone")
        if not is_fleet(found.config):
            raise DeployError(
                f"name: the cluster has an application {spec.name} that `forebay deploy ray` did not submit; "
                f"choose another name"
            )
        _check_ports(found, made["args"])
        there = _replicas(found)
        if there is not None:
            made["deployments"][0]["num_replicas"] = max(1, there)
    begin = dict(instance.settings) or {"proxy_location": spec.proxies}
    return begin | {"applications": [*_others(instance, spec.name), made]}


def without_fleet(instance: ServeInstance, name: str) -> dict[str, Any]:
    return dict(instance.settings) | {"applications": _others(instance, name)}


def _check_ports(found: ServeApplication, args: Mapping[str, Any]) -> None:
    """Running engines are found by the ports of the last submission."""
    before = (found.config or {}).get("args")
    if not isinstance(before, Mapping):
        return
    changed = [key for key in PORT_KEYS if before.get(key, args[key]) != args[key]]
    if changed:
        was = " and ".join(f"{key} {before[key]}" for key in changed)
        raise DeployError(
            f"{', '.join(changed)}: {found.name} has {was}, and with other ports its running engines would "
            f"not be found; remove the fleet first (--remove)"
        )


def _replicas(found: ServeApplication) -> int | None:
    """The fleet's target; while Serve builds it, the submitted number."""
    there = found.deployments.get(DEPLOYMENT)
    if there is not None:
        return there.target
    submitted = (found.config or {}).get("deployments")
    for each in submitted if isinstance(submitted, list) else ():
        if isinstance(each, Mapping) and each.get("name") == DEPLOYMENT:
            many = each.get("num_replicas")
            return many if type(many) is int else None
    return None


def _others(instance: ServeInstance, name: str) -> list[dict[str, Any]]:
    """Other submitted applications that stay; submissions do not touch those that programs started. Raises
    `DeployError` if Serve does not report a submission: leaving it out would delete the application.
    """
    found = []
    for each in instance.applications.values():
        if each.name == name or each.deleting:
            continue
        if each.config is not None:
            found.append(dict(each.config))
        elif each.source == DECLARATIVE:
            raise DeployError(
                f"{each.name}: Ray Serve does not report how this application was submitted; a submission "
                f"without it would delete it; nothing was changed: try again"
            )
    return found


FILE = "serve.yaml"
HEAD = "# Made by `forebay deploy ray`: change the fleet file, then run it again.\n"


def write_config(config: Mapping[str, Any], folder: Path) -> Path:
    """Write `serve.yaml`; returns its path. Raises `SettingError` if the folder is not writable."""
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + to_yaml(dict(config)), encoding="utf-8")
    except OSError as error:
        raise SettingError(f"--out: {folder} cannot be written: {error.strerror}") from None
    return path
