"""Mistakes in a deployment: each message names the key, the value and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.harness.deployments import ENGINE, GATEWAY, JOB, PIPELINE, SCALING, VARIANTS, deployment_of, job_of

from forebay.deploy.kubernetes import load_deployment, render, warnings_of
from forebay.errors import SettingError

SMALL = VARIANTS["smallest"]
POOL = {"url": "http://gateway", "endpoint_picker": {"name": "picker"}}


@pytest.mark.parametrize(
    ("settings", "pipeline", "said"),
    [
        ({"engine": ENGINE}, {}, "pipeline: missing"),
        ({**SMALL, "pipelin": 1}, {}, "did you mean 'pipeline'"),
        (
            {**SMALL, "pipeline": {**JOB, "image": "not an image"}},
            {},
            "pipeline.image: expected an image such as",
        ),
        (
            {**SMALL, "pipeline": {**JOB, "memory": "2 GB"}},
            {},
            "pipeline.memory: expected a quantity such as",
        ),
        ({**SMALL, "pipeline": {**JOB, "state": "/data"}}, {}, "pipeline.state: expected the URI of a store"),
        (
            {**SMALL, "pipeline": {**JOB, "state": "file:///data/x"}},
            {},
            "pipeline.state: file:///data/x is lost",
        ),
        ({**SMALL, "pipeline": {**JOB, "secrets": {}}}, {}, "pipeline.secrets: ENGINE_KEY is missing"),
        (
            {**SMALL, "pipeline": {**JOB, "secrets": {}, "env": {"ENGINE_KEY": "x"}}},
            {},
            "pipeline.env: ENGINE_KEY holds a secret",
        ),
        ({"pipeline": JOB}, {}, "engine: expected one in the deployment file"),
        ({**SMALL, "gateway": {**GATEWAY, "secrets": {}}}, {}, "gateway.secrets: ENGINE_KEY is missing"),
        (
            {**SMALL, "scaling": {**SCALING, "min": 9}},
            {},
            "scaling.min: expected at most scaling.max (4), found 9",
        ),
        ({**SMALL, "scaling": {"max": 4}}, {}, "scaling.prometheus: missing"),
        ({**SMALL, "scaling": {"max": 4, "by": "hpa", "min": 0}}, {}, "found 0; KEDA and controller go to 0"),
        (
            {**SMALL, "engine": {**ENGINE, "replicas": 5}, "scaling": SCALING},
            {},
            "scaling.max: expected at least the 5 initial replicas",
        ),
        (
            {
                **SMALL,
                "engine": {**ENGINE, "pools": [{"name": "a", "replicas": 2}, {"name": "b", "replicas": 3}]},
                "scaling": SCALING,
            },
            {},
            "scaling.max: expected at least the 5 initial replicas",
        ),
        (
            {
                **SMALL,
                "engine": {**ENGINE, "pools": [{"name": "a", "replicas": 0}, {"name": "b"}]},
                "scaling": {**SCALING, "max": 1},
            },
            {},
            "scaling.max: expected at least one replica for each of the 2 pools, found 1",
        ),
        (
            {
                **SMALL,
                "engine": {**ENGINE, "pools": [{"name": "b", "share": 3}, {"name": "a", "replicas": 2}]},
                "scaling": {**SCALING, "max": 5},
            },
            {},
            ".yaml:1: engine.pools[1].replicas: expected at most 1, its share of scaling.max (5), found 2",
        ),
        (
            {**SMALL, "inference_pool": {**POOL, "objectives": {"a": 1, "b": 1}}},
            {},
            "deploy.yaml:1: inference_pool: expected 'objectives' with priorities that differ",
        ),
        (
            {**SMALL, "engine": {**ENGINE, "pools": [{"name": "a", "role": "prefill"}, {"name": "b"}]}},
            {},
            "engine.pools: expected two, one with role: prefill and one with role: decode, found prefill, "
            "none",
        ),
        (
            {
                **VARIANTS["inference pool"],
                "engine": {
                    **ENGINE,
                    "pools": [{"name": "a", "role": "prefill"}, {"name": "b", "role": "decode"}],
                },
            },
            {},
            "engine.pools: expected no role with 'inference_pool'",
        ),
        (
            {**SMALL, "engine": {**ENGINE, "gpu": {"resource": "gpu"}}},
            {},
            "engine.gpu.resource: expected an extended resource such as nvidia.com/gpu",
        ),
        (
            {**SMALL, "engine": {**ENGINE, "pools": [{"name": "a"}, {"name": "a"}]}},
            {},
            "engine.pools: expected names that differ",
        ),
        (
            {
                **SMALL,
                "inference_pool": POOL,
                "scaling": {"by": "controller", "image": "registry.example/gateway:1", "max": 4},
            },
            {},
            "scaling.by: expected keda with 'inference_pool'",
        ),
        (SMALL, {"task_managers": 2}, "task_managers: expected 1, found 2"),
        (SMALL, {"sink": {"type": "stdout"}}, "sink.type: expected a topic or files, found stdout"),
        (SMALL, {"sink": {"type": "jsonl", "path": "out"}}, "is on this machine, not in the pods: mount it"),
        (SMALL, {"journal": {"path": "journal.db"}}, "journal.path: "),
        (
            {"pipeline": JOB},
            {"engine": {"url": "http://gpu-box:8000", "prefill": {"file": "/prefill"}}},
            "engine.prefill.file: /prefill is on this machine",
        ),
    ],
)
def test_a_mistake_is_named(settings: dict[str, Any], pipeline: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        deployment_of(settings, {**PIPELINE, **pipeline})
    assert said in str(caught.value)


def test_topics_without_a_place_for_assignments_need_no_mount() -> None:
    topics = {**PIPELINE, "prompt": None, "application": {"type": "topics"}}
    made = deployment_of(SMALL, topics)
    assert made.job is not None
    assert made.job.spec.assignments is None


WIKI = {"type": "sse", "url": "https://feed.example/v1?access_token=abcdef"}


@pytest.mark.parametrize(
    ("settings", "pipeline", "said"),
    [
        (
            {},
            {"flink": {"metrics.reporter.dd.apikey": "abc"}},
            "flink.metrics.reporter.dd.apikey: it looks like a secret",
        ),
        (
            {},
            {"flink": {"fs.azure.account.key.x": "abc"}},
            "flink.fs.azure.account.key.x: it looks like a secret",
        ),
        ({}, {"source": WIKI}, "source.url: it looks like a secret"),
        ({}, {"prompt": "Use sk-proj-0123456789 for {{ text }}"}, "prompt: it looks like a secret"),
        ({"engine": {**ENGINE, "env": {"HF_TOKEN": "hf_x"}}}, {}, "engine.env.HF_TOKEN: "),
        ({"engine": {**ENGINE, "env": {"OTHER": "hf_abcdefghijkl"}}}, {}, "engine.env.OTHER: "),
        ({"engine": {**ENGINE, "env": {"PROXY": "http://me:pass@proxy"}}}, {}, "engine.env.PROXY: "),
        ({"engine": {**ENGINE, "args": ["--api-key=sk-1"]}}, {}, "engine.args[0]: "),
        ({"engine": {**ENGINE, "args": ["--api-key", "abc"]}}, {}, "engine.args[1]: "),
        (
            {"engine": {**ENGINE, "pools": [{"name": "a", "args": ["--api-key=abc"]}]}},
            {},
            "engine.pools[0].args[0]: ",
        ),
        ({"pipeline": {**JOB, "env": {"DB_PASSWORD": "abc"}}}, {}, "name that under pipeline.secrets"),
        ({"gateway": {**GATEWAY, "env": {"ACCESS_TOKEN": "abc"}}}, {}, "name that under gateway.secrets"),
    ],
)
def test_a_secret_that_a_manifest_would_hold_is_refused_and_not_reported(
    settings: dict[str, Any], pipeline: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingError) as caught:
        deployment_of({**SMALL, **settings}, {**PIPELINE, **pipeline})
    assert said in str(caught.value)
    for secret in ("abc", "sk-", "hf_", "pass@"):
        assert secret not in str(caught.value)


def test_references_to_secrets_and_similar_words_are_allowed() -> None:
    volumes = [{"path": "/secret", "secret": "certificates"}]
    args = ["--api-key=$(ENGINE_KEY)", "--tokenizer=a/b", "--max-num-batched-tokens=8192"]
    engine = {**ENGINE, "args": args, "volumes": volumes, "pull_secrets": ["registry"]}
    made = deployment_of(
        {**SMALL, "engine": {**engine, "env": {"TOKENIZERS_PARALLELISM": "false"}}},
        {
            **PIPELINE,
            "source": {**WIKI, "url": "https://feed.example/v1?stream=recent"},
            "prompt": "Who is the bearer of this? {{ text }}",
            "flink": {"s3.endpoint": "http://store:9000"},
        },
    )
    assert made.settings.engine is not None
    assert made.settings.engine.args == tuple(args)


def test_a_secret_in_the_settings_of_a_gateway_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("keys: [{name: hf_abcdefghijkl, key: {env: ENGINE_KEY}}]\n")
    with pytest.raises(SettingError, match=r"gateway\.config: keys\[0\]\.name: it looks like a secret"):
        deployment_of({**SMALL, "gateway": {**GATEWAY, "config": str(tmp_path / "gateway.yaml")}})


def test_mounted_folders_may_be_read_and_written() -> None:
    volumes = [{"path": "/data", "claim": "data"}]
    made = deployment_of(
        {**SMALL, "pipeline": {**JOB, "volumes": volumes}},
        {**PIPELINE, "sink": {"type": "jsonl", "path": "/data/out"}},
    )
    assert job_of(made).spec.written()["sink.path"] == "/data/out"


def test_missing_deployment_file_error_shows_a_minimal_one(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_bytes(orjson.dumps(PIPELINE))
    with pytest.raises(SettingError, match=r"deploy\.yaml: not found.*image: IMAGE, state: s3://"):
        load_deployment(tmp_path / "p.yaml")


def test_values_of_the_command_line_win(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_bytes(orjson.dumps(PIPELINE))
    (tmp_path / "prod.yaml").write_bytes(orjson.dumps(SMALL))
    made = load_deployment(
        tmp_path / "p.yaml",
        tmp_path / "prod.yaml",
        ["pipeline.image=r/x:2", "pipeline.state=s3://b/e"],
        "elsewhere",
    )
    assert job_of(made).pods.image == "r/x:2"
    assert made.settings.namespace == "elsewhere"
    with pytest.raises(SettingError, match=r"^--set: pipeline\.imagee?: "):
        load_deployment(tmp_path / "p.yaml", tmp_path / "prod.yaml", ["pipeline.image=A B"])


@pytest.mark.heavy
def test_two_namespaces_do_not_share_a_state(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_bytes(orjson.dumps(PIPELINE))
    config = tmp_path / "deploy.yaml"

    def job_of(state: str, own: str | None, namespace: str | None, *settings: str) -> tuple[str, str]:
        config.write_bytes(orjson.dumps({**SMALL, "namespace": own, "pipeline": {**JOB, "state": state}}))
        made = load_deployment(tmp_path / "p.yaml", config, settings, namespace)
        bodies = [each.body for each in render(made)]
        spec = next(body["spec"] for body in bodies if body["kind"] == "FlinkDeployment")
        arguments = spec["job"]["args"]
        return spec["flinkConfiguration"]["high-availability.storageDir"], arguments[-1]

    for own in (None, "test"):
        with pytest.raises(SettingError, match=r"pipeline\.state: .*write s3://b/p/{namespace}, or .* prod "):
            job_of("s3://b/p/", own, "prod")
    assert job_of("s3://b/p", "prod", "prod") == job_of("s3://b/p", None, None)
    given = job_of("s3://b/p", None, "prod", "pipeline.state=s3://b/q")
    assert given[0] == "s3://b/q/ha"
    one, other = job_of("s3://b/{namespace}/p", None, "prod"), job_of("s3://b/{namespace}/p", "test", None)
    assert (one[0], other[0]) == ("s3://b/prod/p/ha", "s3://b/test/p/ha")
    assert one[1] != other[1]
    with pytest.raises(SettingError, match="add --namespace"):
        job_of("s3://b/{namespace}", None, None)


def test_the_settings_of_a_gateway_are_checked_and_keep_their_keys(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(
        "keys: [{name: team, key: {env: TEAM_KEY}}]\ndrain: {grace_s: 90}\n"
    )
    gateway = {**GATEWAY, "config": str(tmp_path / "gateway.yaml")}
    with pytest.raises(SettingError, match=r"gateway\.secrets: TEAM_KEY is missing"):
        deployment_of({**SMALL, "gateway": gateway})
    secrets = {**JOB["secrets"], "TEAM_KEY": {"name": "keys", "key": "team"}}
    made = deployment_of({**SMALL, "gateway": {**gateway, "secrets": secrets}})
    assert made.gateway is not None
    assert made.gateway.drain.grace_s == 90
    (tmp_path / "gateway.yaml").write_text("kees: []\n")
    with pytest.raises(SettingError, match=r"gateway\.yaml:1: unknown key 'kees'; did you mean 'keys'"):
        deployment_of({**SMALL, "gateway": gateway})


@pytest.mark.parametrize(
    ("more", "left_out"),
    [
        ({}, None),
        ({"scaling": {"max": 9}}, "scaling"),
        (
            {"scaling": {"max": 9}, "routing": "session_affinity", "engine": {"kv_events": "tcp://{host}:1"}},
            "routing, scaling, engine.kv_events",
        ),
    ],
)
def test_only_settings_ignored_by_an_inference_pool_are_reported(
    more: dict[str, Any], left_out: str | None
) -> None:
    pipeline = {key: value for key, value in PIPELINE.items() if key != "scaling"} | more
    made = list(warnings_of(deployment_of({**SMALL, "inference_pool": POOL, "scaling": SCALING}, pipeline)))
    assert len(made) == (left_out is not None)
    assert all(f"left out of the pipeline file: {left_out};" in text for text in made)


ALONE = {"name": "chat", "engine": ENGINE, "gateway": GATEWAY}


def test_a_gateway_without_a_pipeline_is_a_deployment_of_its_own() -> None:
    made = deployment_of(ALONE, None)
    assert (made.instance, made.job) == ("chat", None)
    found = {(each.kind, each.name) for each in render(made)}
    assert {("Deployment", "chat-gateway"), ("Deployment", "chat-engine")} <= found
    assert not any(kind == "FlinkDeployment" for kind, _ in found)
    assert list(warnings_of(made)) == []


@pytest.mark.parametrize(
    ("settings", "pipeline", "said"),
    [
        ({**ALONE, "name": None}, None, "name: missing; without 'pipeline' it is required"),
        ({**ALONE, "gateway": None}, None, "pipeline: missing; expected it, or 'gateway' and 'engine'"),
        ({**ALONE, "engine": None}, None, "gateway: expected none without 'engine'"),
        ({**ALONE, "pipeline": JOB}, PIPELINE, "name: expected none with 'pipeline'"),
        (ALONE, PIPELINE, "pipeline: missing in the deployment file, which has a name of its own (chat)"),
        (SMALL, None, "PIPELINE: missing; the deployment file has 'pipeline'"),
    ],
)
def test_pipeline_is_deployed_with_its_file(
    settings: dict[str, Any], pipeline: dict[str, Any] | None, said: str
) -> None:
    with pytest.raises(SettingError) as caught:
        deployment_of(settings, pipeline)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "pipeline", "said"),
    [
        (
            {"scaling": {"by": "hpa", "max": 4}, "monitoring": {"rules": "none"}},
            {},
            "monitoring.rules: with none, no rule records forebay_wanted_replicas",
        ),
        (
            {"scaling": SCALING, "gateway": GATEWAY},
            {"scaling": {"max": 4, "policy": "kv_cache"}},
            "scaling.policy: kv_cache of the pipeline file also includes the gateway's requests",
        ),
    ],
)
def test_implausible_scaling_is_warned_about(
    settings: dict[str, Any], pipeline: dict[str, Any], said: str
) -> None:
    (found,) = warnings_of(deployment_of({**SMALL, **settings}, {**PIPELINE, **pipeline}))
    assert found.startswith(said)


def test_limits_that_contradict_each_other_are_reported() -> None:
    pipeline = {**PIPELINE, "scaling": {"max": 9}}
    (told,) = warnings_of(deployment_of({**SMALL, "scaling": SCALING}, pipeline))
    assert told.startswith("scaling.max: the pipeline file asks for up to 9 replicas")
