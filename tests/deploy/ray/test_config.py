"""What is submitted: the fleet, and all that others have submitted, as it was."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.ray_serve import application, body

from forebay.deploy.ray.config import fleet_config, whole_config, with_fleet, without_fleet
from forebay.deploy.ray.settings import RayFleetSpec
from forebay.errors import DeployError
from forebay.ray_serve.instance import ServeInstance

SPEC = RayFleetSpec(name="fleet", model="org/model", args=("--max-model-len=8",), replicas=2, gpu=1.0)


def instance(*applications: dict[str, Any], **settings: Any) -> ServeInstance:
    return ServeInstance.parse({**body(*applications), **settings})


def test_the_fleet_has_no_route_and_is_scaled_from_outside() -> None:
    made = fleet_config(SPEC)
    assert (made["route_prefix"], made["external_scaler_enabled"]) == (None, True)
    assert made["args"]["command"] == [
        *("vllm", "serve", "org/model", "--host", "{host}", "--port", "{port}"),
        "--max-model-len=8",
    ]
    (engine,) = made["deployments"]
    assert engine["num_replicas"] == 2
    assert engine["ray_actor_options"] == {"num_cpus": 1.0, "num_gpus": 1.0}
    assert engine["graceful_shutdown_timeout_s"] > SPEC.drain_s
    assert "runtime_env" not in made


def test_alone_it_has_no_proxies() -> None:
    assert whole_config(SPEC) == {"proxy_location": "Disabled", "applications": [fleet_config(SPEC)]}


def test_on_a_cluster_without_serve() -> None:
    assert with_fleet(instance(), SPEC) == whole_config(SPEC)


def test_others_and_what_holds_for_all_stay_as_they_were_submitted() -> None:
    web, program = application("web", import_path="web:app"), application("program", import_path=None)
    found = instance(
        web, program, proxy_location="EveryNode", target_capacity=50.0, http_options={"port": 81}
    )
    made = with_fleet(found, SPEC)
    assert made["applications"] == [web["deployed_app_config"], fleet_config(SPEC)]
    assert (made["proxy_location"], made["target_capacity"]) == ("EveryNode", 50.0)
    assert made["http_options"] == {"port": 81}
    taken_away = without_fleet(instance(web, application("fleet"), proxy_location="EveryNode"), "fleet")
    assert taken_away == {"proxy_location": "EveryNode", "applications": [web["deployed_app_config"]]}


@pytest.mark.parametrize(("target", "submitted"), [(4, 4), (1, 1), (0, 1)])
def test_a_fleet_keeps_the_number_that_it_was_scaled_to(target: int, submitted: int) -> None:
    found = instance(application("fleet", target=target))
    (made,) = with_fleet(found, SPEC)["applications"]
    assert made["deployments"][0]["num_replicas"] == submitted


@pytest.mark.parametrize("import_path", ["web:app", None])
def test_a_name_that_is_taken(import_path: str | None) -> None:
    with pytest.raises(DeployError, match="name: the cluster has an application fleet"):
        with_fleet(instance(application("fleet", import_path=import_path)), SPEC)
