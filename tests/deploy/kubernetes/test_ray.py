"""The engine as a RayService."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.harness.deployments import ENGINE, JOB, VARIANTS, deployment_of, job_of, variant
from typer.testing import CliRunner

from forebay.cli import application
from forebay.clients.ray.instance import is_fleet
from forebay.deploy.kubernetes import Deployment, render
from forebay.deploy.kubernetes.ray import ray_fleet
from forebay.deploy.ray.config import load_fleet, whole_config
from forebay.errors import SettingError
from forebay.fleet.endpoints import RayPlace

RAY = {"gateway_class": "istio", "token_secret": "ray"}
SCALED = VARIANTS["ray, scaled"]


def objects(deployment: Deployment) -> dict[tuple[str, str], Any]:
    return {(each.kind, each.name): each.body for each in render(deployment)}


def service(deployment: Deployment) -> dict[str, Any]:
    return dict(objects(deployment)["RayService", "triage-engine"]["spec"])


def worker(deployment: Deployment) -> dict[str, Any]:
    (found,) = service(deployment)["rayClusterConfig"]["workerGroupSpecs"]
    return dict(found)


def test_it_is_the_fleet_that_forebay_deploy_ray_submits() -> None:
    deployment = variant("ray")
    config = yaml.safe_load(service(deployment)["serveConfigV2"])
    assert deployment.settings.engine is not None
    assert config == whole_config(ray_fleet(deployment, deployment.settings.engine))
    (fleet,) = config["applications"]
    assert is_fleet(fleet)
    assert (fleet["route_prefix"], config["proxy_location"]) == (None, "Disabled")
    assert fleet["external_scaler_enabled"] is True
    assert {"--host={host}", "--port={port}", "--served-model-name=smollm2"} < set(fleet["args"]["command"])


def test_the_pipeline_finds_every_head_by_the_name_of_the_fleet() -> None:
    found = objects(variant("ray"))
    document = yaml.safe_load(found["ConfigMap", "triage"]["data"]["pipeline.yaml"])
    place = RayPlace.parse(document["engine"]["ray"])
    assert place == RayPlace("http://triage-ray:8265", "triage")
    assert yaml.safe_load(service(variant("ray"))["serveConfigV2"])["applications"][0]["name"] == place.name
    heads = found["Service", "triage-ray"]["spec"]
    cluster = service(variant("ray"))["rayClusterConfig"]
    assert heads["clusterIP"] == "None"
    assert heads["publishNotReadyAddresses"] is True, "its engines run on while a head misses a probe"
    assert heads["selector"] == cluster["headGroupSpec"]["template"]["metadata"]["labels"]


def test_other_place_of_a_pipeline_is_replaced() -> None:
    pipeline = {
        **job_of(deployment_of(VARIANTS["ray"])).document,
        "engine": {"ray": "http://other:8265/other"},
    }
    pipeline["engine"] |= {"model": "smollm2", "api_key": {"env": "ENGINE_KEY"}}
    document = objects(deployment_of(VARIANTS["ray"], pipeline))["ConfigMap", "triage"]["data"]
    assert "other" not in document["pipeline.yaml"]


def test_one_replica_takes_all_of_a_pod() -> None:
    deployment = variant("ray, scaled")
    (fleet,) = yaml.safe_load(service(deployment)["serveConfigV2"])["applications"]
    taken = fleet["deployments"][0]["ray_actor_options"]
    given = worker(deployment)["rayStartParams"]
    assert {"num-cpus": str(int(taken["num_cpus"])), "num-gpus": str(int(taken["num_gpus"]))}.items() <= (
        given.items()
    )
    assert (given["num-cpus"], given["num-gpus"]) == ("4", "2")
    small = {**VARIANTS["ray"], "engine": {**ENGINE, "cpu": "500m"}}
    assert worker(deployment_of(small))["rayStartParams"]["num-cpus"] == "1", "less than one is one"


def test_kuberay_gets_the_settings_of_its_incremental_upgrade() -> None:
    spec = service(variant("ray, scaled"))
    cluster = spec["rayClusterConfig"]
    assert spec["upgradeStrategy"]["type"] == "NewClusterWithIncrementalUpgrade"
    assert spec["upgradeStrategy"]["clusterUpgradeOptions"]["maxSurgePercent"] == 25
    assert cluster["enableInTreeAutoscaling"] is True
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    named = {each["name"]: each["containerPort"] for each in head["ports"]}
    assert named == {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "serve": 8000}
    assert cluster["headGroupSpec"]["template"]["spec"]["automountServiceAccountToken"] is True
    assert (worker(variant("ray, scaled"))["minReplicas"], worker(variant("ray, scaled"))["maxReplicas"]) == (
        0,
        8,
    )


def test_with_an_autoscaler_an_upgrade_step_starts_from_the_maximum() -> None:
    def configured(deployment: Deployment) -> int:
        (fleet,) = yaml.safe_load(service(deployment)["serveConfigV2"])["applications"]
        return int(fleet["deployments"][0]["num_replicas"])

    assert configured(variant("ray, scaled")) == 8
    assert configured(deployment_of({**VARIANTS["ray"], "engine": {**ENGINE, "replicas": 3}})) == 3


def environment_of(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    return {each["name"]: each for each in container.get("env", ())}


def test_a_caller_of_a_dashboard_has_its_token() -> None:
    found = objects(variant("ray, scaled"))
    cluster = service(variant("ray, scaled"))["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token", "secretName": "ray"}
    held = {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "ray", "key": "auth_token"}}}
    for kind, name in (("Deployment", "triage-gateway"), ("Deployment", "triage-autoscaler")):
        assert environment_of(found[kind, name]["spec"]["template"]["spec"])["RAY_AUTH_TOKEN"] == held
    job = found["FlinkDeployment", "triage"]["spec"]["podTemplate"]["spec"]
    assert environment_of(job)["RAY_AUTH_TOKEN"] == held
    # KubeRay gives it to the nodes, unless they have something of their own.
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        own = environment_of(group["template"]["spec"])
        assert not [name for name in own if name.startswith("RAY_AUTH")]
    without = [each.body for each in render(variant("smallest"))]
    assert "RAY_AUTH_TOKEN" not in str(without)


@pytest.mark.parametrize("by_name", [False, True])
def test_different_token_for_one_part_is_allowed(by_name: bool) -> None:
    gateway, token = SCALED["gateway"], {"name": "other", "key": "token"}
    more: dict[str, Any] = {"secrets": {**gateway["secrets"], "RAY_AUTH_TOKEN": token}}
    if by_name:
        more = {"secrets": {**gateway["secrets"], "MINE": token}, "env": {"RAY_AUTH_TOKEN": "$(MINE)"}}
    deployment = deployment_of({**SCALED, "gateway": {**gateway, **more}})
    pod = objects(deployment)["Deployment", "triage-gateway"]["spec"]["template"]["spec"]
    names = [each["name"] for each in pod["containers"][0]["env"]]
    assert names.count("RAY_AUTH_TOKEN") == 1
    found = environment_of(pod)
    if by_name:
        assert found["RAY_AUTH_TOKEN"] == {"name": "RAY_AUTH_TOKEN", "value": "$(MINE)"}
    assert found["MINE" if by_name else "RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == token


def test_a_pod_is_ready_without_a_proxy_of_serve() -> None:
    (container,) = worker(variant("ray"))["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/api/healthz", "port": 52365}


def test_an_old_cluster_stays_until_its_last_replica_may_have_finished() -> None:
    spec = service(deployment_of({**VARIANTS["ray"], "engine": {**ENGINE, "drain_s": 600}}))
    (fleet,) = yaml.safe_load(spec["serveConfigV2"])["applications"]
    drained = fleet["deployments"][0]["graceful_shutdown_timeout_s"]
    assert spec["rayClusterDeletionDelaySeconds"] > drained > 600


@pytest.mark.parametrize(
    ("changed", "is_new"),
    [
        ({"engine": {**SCALED["engine"], "args": ["--max-model-len=2048"]}}, True),
        ({"scaling": {**SCALED["scaling"], "max": 9}}, True),
        ({"scaling": {**SCALED["scaling"], "settle_s": 9}}, False),
        ({"engine": {**SCALED["engine"], "replicas": 2}}, False),
    ],
    ids=["arguments", "limit", "autoscaler", "replicas to begin with"],
)
def test_a_changed_engine_is_a_new_cluster(changed: dict[str, Any], is_new: bool) -> None:
    def fixed(deployment: Deployment) -> dict[str, Any]:
        """The part of a worker that KubeRay compares."""
        muted = ("replicas", "minReplicas", "maxReplicas")
        return {key: value for key, value in worker(deployment).items() if key not in muted}

    assert (fixed(deployment_of({**SCALED, **changed})) != fixed(deployment_of(SCALED))) is is_new


def test_accelerators_and_weights_are_those_of_any_engine() -> None:
    pod = worker(variant("ray, scaled"))["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "triage-engine"}]
    assert ("ResourceClaimTemplate", "triage-engine") in objects(variant("ray, scaled"))
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}} in pod["volumes"]
    environment = {each["name"]: each for each in container["env"]}
    assert environment["VLLM_API_KEY"]["valueFrom"]["secretKeyRef"]["key"] == "engine-key"
    assert environment["HF_HOME"]["value"].startswith("/cache/")
    (plain,) = worker(variant("ray"))["template"]["spec"]["containers"]
    assert plain["resources"]["limits"]["nvidia.com/gpu"] == "1"


def ports_from(policy: dict[str, Any], component: str) -> list[Any]:
    """The ports that pods of a component may call."""
    label = "app.kubernetes.io/component"
    return [
        port
        for rule in policy["spec"]["ingress"]
        if any(
            peer.get("podSelector", {}).get("matchLabels", {}).get(label) == component
            for peer in rule["from"]
        )
        for port in rule.get("ports", ["all"])
    ]


def test_dashboards_and_engines_are_reached_by_those_who_need_them() -> None:
    found = objects(variant("ray, scaled"))
    engines, heads = found["NetworkPolicy", "triage-engine"], found["NetworkPolicy", "triage-ray"]
    dashboard = [{"protocol": "TCP", "port": 8265}]
    ports = [{"protocol": "TCP", "port": 20000, "endPort": 29999}]
    assert ports_from(heads, "pipeline") == ports_from(heads, "gateway") == dashboard
    assert ports_from(heads, "autoscaler") == dashboard
    assert ports_from(engines, "pipeline") == ports_from(engines, "gateway") == ports
    assert ports_from(engines, "autoscaler") == []
    assert ports_from(engines, "ray") == ports_from(heads, "engine") == ["all"]
    budget = found["PodDisruptionBudget", "triage-engine"]["spec"]
    assert (
        budget["selector"]["matchLabels"] == worker(variant("ray, scaled"))["template"]["metadata"]["labels"]
    )


def test_the_autoscaler_is_forebay_autoscale_ray(tmp_path: Path) -> None:
    found = objects(variant("ray, scaled"))
    (tmp_path / "fleet.yaml").write_text(found["ConfigMap", "triage-autoscaler"]["data"]["fleet.yaml"])
    fleet = load_fleet(tmp_path / "fleet.yaml")
    assert (fleet.address, fleet.name) == ("http://triage-ray:8265", "triage")
    pod = found["Deployment", "triage-autoscaler"]["spec"]["template"]["spec"]
    args = pod["containers"][0]["args"]
    assert "--metrics=http://triage-autoscaler-pipeline:9249/metrics" in args
    assert "--gateway-metrics=http://triage-autoscaler-gateway:9090/metrics" in args
    assert {"--min=0", "--max=8"} < set(args)
    assert pod["automountServiceAccountToken"] is False
    pipeline = found["FlinkDeployment", "triage"]["spec"]["podTemplate"]["metadata"]["labels"]
    assert found["Service", "triage-autoscaler-pipeline"]["spec"]["selector"].items() <= pipeline.items()
    gateway = found["Deployment", "triage-gateway"]["spec"]["template"]["metadata"]["labels"]
    assert found["Service", "triage-autoscaler-gateway"]["spec"]["selector"].items() <= gateway.items()
    wrong = [word for word in args if not word.startswith("--metrics")]
    wrong[2] = str(tmp_path / "fleet.yaml")
    refused = CliRunner().invoke(application(), [*wrong, "--metrics=nowhere"]).exception
    assert "--metrics: expected an http:// address" in str(refused), "all other options are valid"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ray": {**RAY, "import_path": "fleet.app:build"}}, "import_path"),
        (
            {"scaling": {"max": 4, "prometheus": "http://prometheus:9090"}},
            "scaling.by: expected controller with 'ray', because Serve starts the replicas, found keda",
        ),
        (
            {"engine": {**ENGINE, "pools": [{"name": "a"}]}},
            "engine.pools: expected none with 'ray', because all replicas are of one kind",
        ),
        ({"scaling": {**SCALED["scaling"], "max": 1001}}, "scaling.max: expected at most 1000 with 'ray'"),
        (
            {"inference_pool": {"url": "http://gateway", "endpoint_picker": {"name": "picker"}}},
            "inference_pool: expected none with 'ray', whose engines have no port in common",
        ),
        ({"engine": {**ENGINE, "args": ["--api-key=$(KEY)"]}}, "engine.args: expected no $(NAME) with 'ray'"),
    ],
)
def test_incompatible_settings_are_rejected(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        deployment_of({"pipeline": JOB, "engine": ENGINE, "ray": RAY, **settings})
    assert said in str(caught.value)


def test_a_mistake_is_reported_once() -> None:
    pools = [{"name": "a", "role": "prefill"}, {"name": "b", "role": "decode"}]
    with pytest.raises(SettingError) as caught:
        deployment_of({"pipeline": JOB, "engine": {**ENGINE, "pools": pools}, "ray": RAY})
    assert str(caught.value).count("engine.pools") == 1
