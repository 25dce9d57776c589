"""Settings of a fleet file, and how they are loaded and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, Strict

from forebay.clients.ray.ports import MAX_PORTS
from forebay.deploy.fields import Label, ResourceName, Seconds, Text, Variable
from forebay.documents import Where, check_document, known_paths, read_document
from forebay.errors import SettingError
from forebay.fields import HttpUrl, Model, NotNegativeFloat, wrong
from forebay.pipeline.load import set_values
from forebay.secret_text import secrets_written_in

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
        {},
        description="Environment variables of the replicas. Set secrets on the nodes instead.",
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
    """Load the fleet file at `path`; blocks on the file system.

    `settings` (`key=value`) and `address` override it. Raises `SettingError` with one line per mistake, also
    for likely secrets, which everybody with access to the cluster could read.
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
