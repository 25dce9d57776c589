"""The submitted config: the fleet, and other applications unchanged."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.harness.ray_serve import application, body

from forebay.clients.ray.instance import ServeInstance
from forebay.deploy.ray.config import (
    RayFleetSpec,
    fleet_config,
    load_fleet,
    whole_config,
    with_fleet,
    without_fleet,
)
from forebay.errors import DeployError, SettingError

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


def test_ray_programs_get_our_router_or_serves_own() -> None:
    (engine,) = fleet_config(SPEC)["deployments"]
    assert engine["max_ongoing_requests"] == 256
    router = engine["request_router_config"]
    module, _, name = router["request_router_class"].rpartition(".")
    assert f"class {name}(RequestRouter)" in Path(str(find_spec(module).origin)).read_text()  # type: ignore[union-attr]
    assert router["request_routing_stats_period_s"] == 1.0
    (engine,) = fleet_config(SPEC.model_copy(update={"router": "serve"}))["deployments"]
    assert "request_router_config" not in engine


def test_alone_it_has_no_proxies() -> None:
    assert whole_config(SPEC) == {"proxy_location": "Disabled", "applications": [fleet_config(SPEC)]}


def test_on_a_cluster_without_serve() -> None:
    assert with_fleet(instance(), SPEC) == whole_config(SPEC)


def test_other_applications_and_common_settings_are_unchanged() -> None:
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


@pytest.mark.parametrize(("before", "submitted"), [(8, 8), (None, 2)])
def test_while_serve_builds_a_fleet_it_keeps_the_submitted_number(before: int | None, submitted: int) -> None:
    found = instance(application("fleet", status="DEPLOY_FAILED", submitted=before, built=False))
    (made,) = with_fleet(found, SPEC)["applications"]
    assert made["deployments"][0]["num_replicas"] == submitted


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"first_port": 30_000}, "first_port: fleet has first_port 20000"),
        ({"ports": 500}, "ports: fleet has ports 10000"),
    ],
    ids=["first_port", "ports"],
)
def test_a_fleet_that_is_there_keeps_its_ports(changed: dict[str, int], said: str) -> None:
    with pytest.raises(DeployError, match=rf"{said}.*remove the fleet first \(--remove\)"):
        with_fleet(instance(application("fleet")), SPEC.model_copy(update=changed))


@pytest.mark.parametrize("arguments", [None, {}])
def test_a_fleet_that_does_not_show_its_ports_is_submitted_again(arguments: Any) -> None:
    made = application("fleet")
    made["deployed_app_config"]["args"] = arguments
    assert with_fleet(instance(made), SPEC)["applications"][0]["args"] == fleet_config(SPEC)["args"]


def test_a_fleet_that_is_being_removed_is_waited_for() -> None:
    with pytest.raises(DeployError, match="fleet: it is still being removed"):
        with_fleet(instance(application("fleet", status="DELETING")), SPEC)


def test_deleting_application_is_not_submitted_again() -> None:
    going = application("web", import_path="web:app")
    going["status"] = "DELETING"
    assert without_fleet(instance(going, application("fleet")), "fleet")["applications"] == []


def test_nothing_is_submitted_if_it_would_delete_another_application() -> None:
    unknown = application("web", import_path="web:app")
    unknown["deployed_app_config"] = None
    found = instance(unknown, application("fleet"))
    for submission in (lambda: with_fleet(found, SPEC), lambda: without_fleet(found, "fleet")):
        with pytest.raises(DeployError, match=r"web: Ray Serve does not report how .* nothing was changed"):
            submission()


@pytest.mark.parametrize("import_path", ["web:app", None])
def test_a_name_that_is_taken(import_path: str | None) -> None:
    with pytest.raises(DeployError, match="name: the cluster has an application fleet"):
        with_fleet(instance(application("fleet", import_path=import_path)), SPEC)


def load(folder: Path, text: str, *settings: str, address: str | None = None) -> object:
    path = folder / "fleet.yaml"
    path.write_text(text)
    return load_fleet(path, settings, address)


def test_name_and_model_are_enough(tmp_path: Path) -> None:
    spec = load(tmp_path, "name: fleet\nmodel: org/model\n", "gpu=1", address="http://head:8265")
    assert (spec.gpu, spec.address, spec.command[0]) == (1.0, "http://head:8265", "vllm")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: m", "name: missing"),
        ("name: a\nmodel: m\nreplica: 2", r"fleet.yaml:3: unknown key 'replica'; did you mean 'replicas'\?"),
        ("name: a\nmodel: m\nreplicas: 0", "greater than or equal to 1"),
        ("name: A b\nmodel: m", "a DNS label"),
        ("name: a\nmodel: m\ncommand: [x, '{host}']", r"expected \{port\} in 'command'"),
        ("name: a\nmodel: m\nfirst_port: 60000", "expected ports up to 65535"),
        ("name: a\nmodel: m\naddress: head:8265", "expected a URL"),
        ("name: a\nmodel: m\nenv: {HF_TOKEN: hf_aaaaaaaaaaaa}", "env.HF_TOKEN: it looks like a secret"),
        ("name: a\nmodel: m\nargs: [--api-key=abcdefgh]", r"args\[0\]: it looks like a secret"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingError, match=said) as caught:
        load(tmp_path, text)
    assert "hf_aaaa" not in str(caught.value)


@pytest.mark.heavy
@pytest.mark.parametrize("module", ["ray.config", "ray.autoscale", "kubernetes", "controller.loop"])
def test_each_program_begins_with_its_own_module(module: str) -> None:
    subprocess.run([sys.executable, "-c", f"import forebay.deploy.{module}"], check=True)
