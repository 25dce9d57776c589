"""The pipeline as a FlinkDeployment."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.harness.deployments import JOB, PIPELINE, VARIANTS, deployment_of, job_of, variant

from forebay.deploy.kubernetes import Deployment, pipeline, render
from forebay.deploy.kubernetes.pipeline import flink_configuration, job_document, quantity
from forebay.errors import SettingError
from forebay.fleet.endpoints import KubernetesReplicas
from forebay.pipeline.flink_options import is_option
from forebay.pipeline.load import load_spec, parse_spec
from forebay.yaml_document import parse_yaml

WITH_PIPELINE = [name for name, settings in VARIANTS.items() if "pipeline" in settings]


def objects(deployment: Deployment) -> dict[tuple[str, str], Any]:
    return {(each.kind, each.name): each.body for each in render(deployment)}


def job(deployment: Deployment) -> dict[str, Any]:
    return dict(objects(deployment)["FlinkDeployment", "triage"]["spec"])


@pytest.mark.parametrize("name", WITH_PIPELINE)
def test_every_option_is_a_flink_option(name: str) -> None:
    options = flink_configuration(variant(name), job_of(variant(name)))
    unknown = [key for key in options if not key.startswith("kubernetes.operator.") and not is_option(key)]
    assert unknown == []


def test_flink_arguments_precede_the_pipelines() -> None:
    spec = job(variant("smallest"))["job"]
    assert "jarURI" not in spec
    module = spec["args"].index("-pym")
    assert spec["args"].index("/etc/forebay/pipeline.yaml") == module + 2
    assert spec["parallelism"] == PIPELINE["parallelism"]


def test_a_scaling_job_counts_waiting_records_and_its_subtasks_can_ask() -> None:
    made = objects(variant("smallest"))
    args = job(variant("smallest"))["job"]["args"]
    url = urlsplit(args[args.index("--queue-url") + 1])
    service = made["Service", url.hostname]["spec"]
    assert [each["port"] for each in service["ports"]] == [url.port]
    pipeline_pods = variant("smallest").selector("pipeline")
    assert service["selector"] == {**pipeline_pods, **pipeline.JOB_MANAGER}
    own = {"podSelector": {"matchLabels": pipeline_pods}}
    assert {"from": [own]} in made["NetworkPolicy", "triage"]["spec"]["ingress"]


def test_the_job_manager_leaves_memory_for_the_program_that_counts() -> None:
    key = "jobmanager.memory.jvm-overhead.min"
    counts = variant("smallest")
    assert flink_configuration(counts, job_of(counts))[key] == "320m"
    counts = deployment_of(VARIANTS["smallest"], {**PIPELINE, "scaling": None})
    assert key not in flink_configuration(counts, job_of(counts))


@pytest.mark.parametrize(
    ("name", "pipeline"),
    [
        ("smallest", {"scaling": None}),
        ("smallest", {"source": {"type": "jsonl", "path": "/data/in.jsonl"}}),
        ("inference pool", {}),
    ],
    ids=["not scaled", "no topic", "no policy"],
)
def test_other_jobs_count_nothing(name: str, pipeline: dict[str, Any]) -> None:
    settings = {**VARIANTS[name], "pipeline": {**JOB, "volumes": [{"path": "/data", "claim": "data"}]}}
    made = objects(deployment_of(settings, {**PIPELINE, **pipeline}))
    assert ("Service", "triage-queue") not in made
    assert "--queue-url" not in made["FlinkDeployment", "triage"]["spec"]["job"]["args"]


def test_state_for_an_upgrade_is_in_the_store() -> None:
    configuration = job(variant("smallest"))["flinkConfiguration"]
    for key in (
        "execution.checkpointing.dir",
        "execution.checkpointing.savepoint-dir",
        "high-availability.storageDir",
    ):
        assert configuration[key].startswith("s3://bucket/triage/")
    assert configuration["kubernetes.operator.job.autoscaler.enabled"] == "false"
    assert job(variant("ray"))["job"]["upgradeMode"] == "last-state"


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("smallest", {"kubernetes": "triage-engine:http"}),
        ("inference pool", {"url": "http://inference-gateway"}),
        ("ray", {"ray": "http://triage-ray:8265/triage"}),
    ],
)
def test_the_job_reads_the_original_file_with_the_deployments_engine(
    name: str, engine: dict[str, str], tmp_path: Path
) -> None:
    text = objects(variant(name))["ConfigMap", "triage"]["data"]["pipeline.yaml"]
    (tmp_path / "pipeline.yaml").write_text(text)
    spec, before = load_spec(tmp_path / "pipeline.yaml"), job_of(variant(name)).spec
    assert spec.prompt == before.prompt
    assert spec.engine.model == "smollm2"
    assert spec.engine.api_key == before.engine.api_key
    found = spec.engine.model_dump(mode="json")
    assert {key: found[key] for key in ("url", "kubernetes", "ray") if found[key]} == {
        key: [value] if key == "url" else value for key, value in engine.items()
    }


def test_an_inference_gateway_gets_priorities_and_nothing_else_chooses(tmp_path: Path) -> None:
    written = {
        **PIPELINE,
        "routing": "session_affinity",
        "priority": "{{ urgency }}",
        "engine": {**PIPELINE["engine"], "kv_events": "tcp://{host}:5557", "priority": True},
    }
    text = objects(deployment_of(VARIANTS["inference pool"], written))["ConfigMap", "triage"]["data"]
    (tmp_path / "pipeline.yaml").write_text(text["pipeline.yaml"])
    spec = load_spec(tmp_path / "pipeline.yaml")
    assert spec.engine.url == ("http://inference-gateway",)
    assert spec.engine.inference_gateway is not None
    assert spec.engine.inference_gateway.objectives == {"urgent": 0, "batch": 10}
    assert spec.engine.inference_gateway.fairness_id == "triage"
    assert (spec.scaling, spec.engine.kv_events, spec.engine.priority) == (None, None, True)
    assert spec.priority == "{{ urgency }}"


UNSCALED = {key: value for key, value in PIPELINE.items() if key != "scaling"}
PLACES: list[Any] = [
    "http://gpu-box:8000",
    ["http://gpu-box:8000"],
    {"url": "http://gpu-box:8000", "prefill": "http://other:8000"},
    {"file": "/replicas"},
    {"dns": "http://gpu-box:8000"},
    {"kubernetes": "other"},
    {"ray": "http://head:8265/fleet"},
]


@pytest.mark.heavy
@pytest.mark.parametrize("engine", PLACES, ids=str)
@pytest.mark.parametrize("name", ["smallest", "inference pool", "ray"])
def test_the_deployments_replicas_replace_those_of_the_pipeline_file(name: str, engine: Any) -> None:
    made = deployment_of(VARIANTS[name], {**PIPELINE, "engine": engine})
    text = objects(made)["ConfigMap", "triage"]["data"]["pipeline.yaml"]
    document = parse_yaml(text, "the job's")[0]
    spec = parse_spec(document)
    assert (
        spec.engine.replicas()
        == parse_spec(job_document(variant(name), job_of(variant(name)))).engine.replicas()
    )
    assert set(document["engine"]) == {
        *job_document(variant(name), job_of(variant(name)))["engine"],
        "model",
    } - {"api_key"}


def test_the_router_finds_both_pools() -> None:
    found = objects(variant("prefill and decode"))
    text = found["ConfigMap", "triage"]["data"]["pipeline.yaml"]
    engine = parse_spec(parse_yaml(text, "the job's")[0]).engine
    assert engine.replicas() == KubernetesReplicas("triage-engine-decode:http")
    assert engine.prefill is not None
    assert engine.prefill.replicas() == KubernetesReplicas("triage-engine-prefill:http")
    assert {("Service", f"triage-engine-{role}") for role in ("prefill", "decode")} <= found.keys()


@pytest.mark.parametrize(
    ("engine", "watches"),
    [
        ("http://gpu-box:8000", False),
        ({"kubernetes": "decode"}, True),
        ({"url": "http://gpu-box:8000", "prefill": {"kubernetes": "prefill"}}, True),
        ({"url": "http://gpu-box:8000", "prefill": "http://other:8000"}, False),
    ],
)
def test_a_job_that_watches_endpoints_may_do_so(engine: Any, watches: bool) -> None:
    made = deployment_of({"pipeline": JOB}, {**UNSCALED, "engine": engine})
    rules = objects(made)["Role", "triage"]["rules"]
    assert ("endpointslices" in [name for rule in rules for name in rule["resources"]]) == watches


def test_a_job_that_would_not_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Like a new key that was forgotten here.
    monkeypatch.setattr(pipeline, "WHERE", ("url", "file", "dns", "kubernetes"))
    with pytest.raises(
        SettingError,
        match=r"pipeline\.yaml as rendered for the job: engine: expected one of .*, found several",
    ):
        deployment_of(VARIANTS["smallest"], {**PIPELINE, "engine": {"ray": "http://head:8265/fleet"}})


def test_a_changed_pipeline_file_is_a_new_version_of_the_job() -> None:
    def annotations(pipeline: dict[str, Any]) -> dict[str, str]:
        template = job(deployment_of({"pipeline": JOB, **VARIANTS["smallest"]}, pipeline))["podTemplate"]
        return dict(template["metadata"]["annotations"])

    assert annotations(PIPELINE) == annotations(dict(PIPELINE))
    assert annotations(PIPELINE) != annotations({**PIPELINE, "prompt": "{{ text }} other"})


def test_memory_is_in_flinks_unit() -> None:
    spec = job(deployment_of({**VARIANTS["smallest"], "pipeline": {**JOB, "memory": "3Gi", "cpu": "1500m"}}))
    assert spec["taskManager"]["resource"] == {"cpu": 1.5, "memory": "3072m"}


@pytest.mark.parametrize(
    ("text", "number"),
    [("500m", Fraction(1, 2)), ("4", Fraction(4)), ("1.5Gi", Fraction(3 << 29)), ("2G", Fraction(2 * 10**9))],
)
def test_quantities(text: str, number: Fraction) -> None:
    assert quantity(text) == number


def test_rights_are_least() -> None:
    made = objects(variant("everything"))
    for name in ("triage", "triage-pipeline-tasks"):
        rules = made["Role", name]["rules"]
        assert all("*" not in rule[key] for rule in rules for key in ("apiGroups", "resources", "verbs"))
        assert not any("secrets" in rule["resources"] for rule in rules)
    for rule in made["Role", "triage"]["rules"]:
        if rule["apiGroups"] == ["apps"]:
            assert rule["resourceNames"] == ["triage"]


def test_task_managers_may_start_and_change_nothing() -> None:
    made = objects(variant("everything"))
    account = job(variant("everything"))["flinkConfiguration"]["kubernetes.taskmanager.service-account"]
    assert account != job(variant("everything"))["serviceAccount"]
    assert ("ServiceAccount", account) in made
    (subject,) = made["RoleBinding", account]["subjects"]
    assert subject["name"] == account
    verbs = {verb for rule in made["Role", account]["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}
