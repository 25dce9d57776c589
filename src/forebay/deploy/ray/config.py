"""What Ray Serve is to run, as `serve deploy` and its REST interface take it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forebay.errors import DeployError
from forebay.ray_serve.engines import is_fleet
from forebay.ray_serve.ports import DEPLOYMENT, IMPORT_PATH

if TYPE_CHECKING:
    from forebay.deploy.ray.settings import RayFleetSpec
    from forebay.ray_serve.instance import ServeInstance

AFTER_DRAIN_S = 10
HEALTH_TIMEOUT_S = 10


def serve_application(
    name: str, import_path: str, args: Mapping[str, Any], *, route_prefix: str | None
) -> dict[str, Any]:
    """One application: what is imported on the cluster, and with which arguments it is built."""
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
    }
    return made | {"external_scaler_enabled": True, "deployments": [deployment]}


def whole_config(spec: RayFleetSpec) -> dict[str, Any]:
    """The fleet alone, as a file for `serve deploy`."""
    return {"proxy_location": spec.proxies, "applications": [fleet_config(spec)]}


def with_fleet(instance: ServeInstance, spec: RayFleetSpec) -> dict[str, Any]:
    """All that is to run once the fleet is there: the others as they were submitted, the fleet in place of
    its last version. A fleet that is there keeps the number of replicas that it has.

    Raises `DeployError` where another's application has the name.
    """
    found = instance.applications.get(spec.name)
    made = fleet_config(spec)
    if found is not None:
        if not is_fleet(found.config):
            raise DeployError(
                f"name: the cluster has an application {spec.name} that `forebay deploy ray` did not submit; "
                f"choose another name"
            )
        there = found.deployments.get(DEPLOYMENT)
        if there is not None:
            made["deployments"][0]["num_replicas"] = max(1, there.target)
    begin = dict(instance.settings) or {"proxy_location": spec.proxies}
    return begin | {"applications": [*_others(instance, spec.name), made]}


def without_fleet(instance: ServeInstance, name: str) -> dict[str, Any]:
    """All that is to run once the application `name` is gone."""
    return dict(instance.settings) | {"applications": _others(instance, name)}


def _others(instance: ServeInstance, name: str) -> list[dict[str, Any]]:
    """Every application that was submitted, but this one. Those that a program started are not in it: no
    submission touches them."""
    return [
        dict(each.config)
        for each in instance.applications.values()
        if each.name != name and each.config is not None
    ]
