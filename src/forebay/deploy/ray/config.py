"""A fleet file, and Ray Serve's config made of it, for `serve deploy` and the REST interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, Strict

from forebay.clients.ray import DEPLOYMENT, IMPORT_PATH, MAX_PORTS
from forebay.clients.ray.instance import DECLARATIVE, is_fleet
from forebay.deploy.fields import Label, ResourceName, Seconds, Text, Variable
from forebay.deploy.ray.stats import STATS_PERIOD_S
from forebay.documents import Where, check_document, known_paths, read_document
from forebay.errors import DeployError, SettingError
from forebay.fields import HttpUrl, Model, NotNegativeFloat, wrong
from forebay.pipeline.load import set_values
from forebay.secret_text import secrets_written_in
from forebay.yaml_document import to_yaml

if TYPE_CHECKING:
    from forebay.clients.ray.instance import ServeApplication, ServeInstance

MAX_ENTRIES = 100
PLACES = ("{host}", "{port}")

Words = Annotated[tuple[Text, ...], Field(max_length=MAX_ENTRIES)]


class RayFleetSpec(Model):
    """vLLM replicas as an application of Ray Serve."""

    address: HttpUrl = Field(
        "http://127.0.0.1:8265", description="Address of the cluster's dashboard; `--address` wins."
    )
    name: Label = Field(description="Name of the application; no other one on the cluster may have it.")
    model: Text = Field(description="Model to serve: its name on the hub, or a folder on every node.")
    command: Annotated[tuple[Text, ...], Field(min_length=1, max_length=MAX_ENTRIES)] = Field(
        ("vllm", "serve", "{model}", "--host", "{host}", "--port", "{port}"),
        description="Command that starts one engine. It must contain `{host}` and `{port}`, its address; "
        "`{model}` is the model. Its output is in the replica's log.",
    )
    args: Words = Field((), description="Further arguments, such as `--max-model-len=8192`.")
    env: Annotated[dict[Variable, Text], Field(max_length=MAX_ENTRIES)] = Field(
        {}, description="Environment variables of the replicas. Set secrets on the nodes instead."
    )
    replicas: Annotated[int, Strict(), Field(ge=1, le=1000)] = Field(
        1, description="Initial replicas; an existing fleet keeps its number."
    )
    cpu: NotNegativeFloat = Field(1.0, description="Processor cores that each replica takes from Ray.")
    gpu: NotNegativeFloat = Field(0.0, description="Accelerators that each replica takes from Ray.")
    resources: Annotated[dict[ResourceName | Label, NotNegativeFloat], Field(max_length=MAX_ENTRIES)] = Field(
        {}, description="Further resources of Ray that each replica takes."
    )
    first_port: Annotated[int, Strict(), Field(ge=1024, le=65_535)] = Field(
        20_000, description="First of the ports that engines listen on."
    )
    ports: Annotated[int, Strict(), Field(ge=100, le=MAX_PORTS)] = Field(
        10_000,
        description="Number of ports. A replica's port is the first one plus its process id modulo this "
        "number, so that the engine's address follows from the replica's process.",
    )
    startup_s: Seconds = Field(1800, description="How long an engine may take to become healthy.")
    drain_s: Seconds = Field(300, description="How long a removed replica may take to finish its requests.")
    health_period_s: Annotated[int, Strict(), Field(ge=1, le=600)] = Field(
        2, description="Pause between health checks of an engine; an ended one is noticed at once."
    )
    max_ongoing: Annotated[int, Strict(), Field(ge=1, le=1_000_000)] = Field(
        256,
        description="How many requests programs on Ray may have at one replica by a "
        "handle of Serve; more wait. Gateways and pipelines do not count.",
    )
    router: Literal["forebay", "serve"] = Field(
        "forebay",
        description="Who chooses the replica for such a program: Forebay's router or Serve's own. With "
        "HAProxy, Serve only allows its own.",
    )
    proxies: Literal["Disabled", "HeadOnly", "EveryNode"] = Field(
        "Disabled",
        description="Where Ray Serve runs HTTP proxies, if Serve is not running yet; the engines need none. "
        "Changing it needs a restart of Serve.",
    )

    def model_post_init(self, context: object, /) -> None:
        given = " ".join((*self.command, *self.args))
        missing = [place for place in PLACES if place not in given]
        if missing:
            raise wrong(f"expected {' and '.join(missing)} in 'command', the engine's address")
        if self.first_port + self.ports > 65_536:
            raise wrong(
                f"expected ports up to 65535, found {self.ports} from {self.first_port}: lower 'ports'"
            )


WHAT = "Ray fleet"


def load_fleet(path: Path, settings: Sequence[str] = (), address: str | None = None) -> RayFleetSpec:
    """`settings` (`key=value`) and `address` override the file. Blocks.

    Raises `SettingError` with one line per mistake, also for likely secrets, which all users of the cluster
    could read.
    """
    value, lines = read_document(path, WHAT)
    given: list[Where] = []
    if isinstance(value, dict):
        given = set_values(value, settings, known_paths(RayFleetSpec, value))
        if address is not None:
            value["address"] = address
            given.append(("address",))
    spec = check_document(RayFleetSpec, value, what=WHAT, name=str(path), lines=lines, given=given)
    problems = [
        f"{path}: {key}: it looks like a secret, and everybody with access to the cluster can read it: set "
        f"the variable on the nodes: engines inherit it"
        for key in secrets_written_in(value)
    ]
    if problems:
        raise SettingError("\n".join(problems))
    return spec


AFTER_DRAIN_S = 10
HEALTH_TIMEOUT_S = 10
ROUTER = "forebay.deploy.ray.router.FleetRouter"
PORT_KEYS = ("first_port", "ports")


def serve_application(
    name: str, import_path: str, args: Mapping[str, Any], *, route_prefix: str | None
) -> dict[str, Any]:
    return {"name": name, "route_prefix": route_prefix, "import_path": import_path, "args": dict(args)}


def fleet_config(spec: RayFleetSpec) -> dict[str, Any]:
    """Without a route: tokens do not pass through Serve's proxies."""
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
    return {"proxy_location": spec.proxies, "applications": [fleet_config(spec)]}


def with_fleet(instance: ServeInstance, spec: RayFleetSpec) -> dict[str, Any]:
    """Other applications stay as submitted; an existing fleet keeps its number of replicas.

    Raises `DeployError` if another application has the name, the fleet is being removed, or its ports
    change.
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
    """Raises `DeployError` if Serve does not report a submission: leaving it out would delete the
    application."""
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
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + to_yaml(dict(config)), encoding="utf-8")
    except OSError as error:
        raise SettingError(f"--out: {folder} cannot be written: {error.strerror}") from None
    return path
