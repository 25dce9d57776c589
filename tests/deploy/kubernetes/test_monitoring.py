"""Alerts name what a person can do; Prometheus computes them, and KEDA's queries, as intended."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from ruamel.yaml import YAML
from tests.harness.deployments import PIPELINE, VARIANTS, deployment_of, job_of, variant

from forebay.deploy.alerts import JOB, KAFKA_WAITS
from forebay.deploy.kubernetes import Deployment, render
from forebay.deploy.kubernetes.deployment import (
    IN_FLIGHT,
    PENDING,
    RECORDS,
    RESULTS,
    RUNNING,
    WANTED,
    gateway_load,
    of_pipeline,
    series,
)
from forebay.deploy.kubernetes.monitoring import rules
from forebay.deploy.kubernetes.scaling import gateway_query, held_query, total_query, wanted_query
from forebay.deploy.kubernetes.settings import ReplicaScaling
from forebay.fleet.autoscale.settings import Share
from forebay.flink.metric_names import full_name
from forebay.gateway.peak_load import PEAK_LOAD

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(
    ("name", "says"), [("everything", "Raise scaling.max,"), ("smallest", "Raise engine.replicas,")]
)
def test_too_small_fleet_alert_uses_its_own_setting(name: str, says: str) -> None:
    actions = {rule["alert"]: rule["annotations"]["action"] for rule in rules(variant(name))}
    assert actions["ForebayBehind"].startswith(says)
    assert ("scaling.max" in actions["ForebayBehind"]) == (variant(name).settings.scaling is not None)


EVERYTHING = variant("everything")
RULES = {rule["alert"]: rule for rule in rules(EVERYTHING)}
FULL = job_of(EVERYTHING).spec.capacity * job_of(EVERYTHING).spec.parallelism
ACCEPTED, RESTORED, DEAD_LETTERS, TOO_LARGE, FINDINGS, REPLICAS, JOURNAL = (
    full_name(name)
    for name in (
        "accepted", "restored", "dead_letters", "too_large", "findings", "replicas", "journal_failures",
    )
)  # fmt: skip
CLOCK = "@trends-clock"
"""Of series of the operator in front of `infer`."""
READ, LATE = f"{RECORDS}{CLOCK}", f"{DEAD_LETTERS}{CLOCK}"
OPERATOR = (ACCEPTED, RESTORED, RESULTS, DEAD_LETTERS, IN_FLIGHT, PENDING)
GATEWAY = "the gateway"
IDLE = dict.fromkeys((*OPERATOR, GATEWAY), "0x60")
"""A pipeline without work for an hour; `A+BxN` is A, plus B N times."""
POSTS = {**IDLE, READ: "0+10000x60", LATE: "0+1x60", ACCEPTED: "0+0.2x60", RESULTS: "0+0.2x60"}
ONLY_POSTS = {GATEWAY: "0x60", READ: "0+100x60", LATE: "0x60"}
COMPLETED = f"{JOB}numberOfCompletedCheckpoints"
CASES: dict[str, tuple[Mapping[str, str], str | None]] = {
    "idle": (IDLE, None),
    "it answers": ({**IDLE, IN_FLIGHT: "5x60", RESULTS: "0+10x60"}, None),
    "it restarted": ({**IDLE, IN_FLIGHT: "5x60", RESULTS: "900+10x20 0+10x40"}, None),
    "no metrics": ({GATEWAY: "0x60"}, "ForebayNoMetrics"),
    "no gateway": (dict.fromkeys(OPERATOR, "0x60"), "ForebayGatewayNoMetrics"),
    "no answers": ({**IDLE, IN_FLIGHT: "5x60", RESULTS: "10x60"}, "ForebayStuck"),
    "dead letters only": (
        {**IDLE, ACCEPTED: "0+10x60", PENDING: "5x60", DEAD_LETTERS: "0+10x60"},
        "ForebayDeadLetters",
    ),
    "a dead letter in ten": (
        {**IDLE, ACCEPTED: "0+100x60", IN_FLIGHT: "5x60", RESULTS: "0+90x60", DEAD_LETTERS: "0+10x60"},
        "ForebayDeadLetters",
    ),
    "a result in ten is too large": (
        {**IDLE, IN_FLIGHT: "5x60", RESULTS: "0+100x60", TOO_LARGE: "0+10x60"},
        "ForebayDeadLetters",
    ),
    "a dead letter in a hundred": (
        {**IDLE, ACCEPTED: "0+100x60", IN_FLIGHT: "5x60", RESULTS: "0+99x60", DEAD_LETTERS: "0+1x60"},
        None,
    ),
    "a late post a minute": (POSTS, None),
    "all reasons are dead letters": ({**POSTS, DEAD_LETTERS: "0+0.2x60"}, "ForebayDeadLetters"),
    "without labels": (ONLY_POSTS, None),
    "a late post in ten": ({**ONLY_POSTS, LATE: "0+10x60"}, "ForebayDeadLetters"),
    "trends are too large": (
        {**ONLY_POSTS, FINDINGS: "0+5x60", TOO_LARGE: "0+4x60"},
        "ForebayDeadLetters",
    ),
    "calls hang, and posts are late": ({**POSTS, IN_FLIGHT: "5x60", RESULTS: "10x60"}, "ForebayStuck"),
    "full": ({**IDLE, IN_FLIGHT: f"{FULL}x60", RESULTS: "0+9x60"}, "ForebayBehind"),
    "no replica": (
        {**IDLE, REPLICAS: "2x36 0x24", IN_FLIGHT: "5x60", RESULTS: "0+10x36 360x24"},
        "ForebayNoReplica",
    ),
    "the replicas boot": ({**IDLE, REPLICAS: "0x60", PENDING: "0x43 5x17"}, None),
    "scaled to zero": ({**IDLE, REPLICAS: "2x10 0x50"}, None),
    "the journal fails": ({**IDLE, JOURNAL: "0+1x60"}, "ForebayJournalFails"),
    "the topics fill": ({**IDLE, KAFKA_WAITS: "0+100x60"}, "ForebayLagGrows"),
    "the topics empty": ({**IDLE, KAFKA_WAITS: "9000-100x60"}, None),
    "checkpoints fail": (
        {**IDLE, f"{JOB}numberOfFailedCheckpoints": "0+2x60", COMPLETED: "0+1x60"},
        "ForebayCheckpointsFail",
    ),
    "nothing is committed": (
        {**IDLE, RESULTS: "0+10x60", COMPLETED: "7x60"},
        "ForebayCommitSlow",
    ),
    "no trend is committed": ({**ONLY_POSTS, FINDINGS: "0+10x60", COMPLETED: "7x60"}, "ForebayCommitSlow"),
    "nearly full": ({**IDLE, IN_FLIGHT: f"{FULL - 1}x60", RESULTS: "0+9x60"}, None),
}


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool, which evaluates rules: it comes with Prometheus (apt install prometheus)")
    return found


def run(promtool: str, folder: Path, *cases: Mapping[str, Any]) -> None:
    """Run Prometheus' own evaluation and compare; JSON is YAML."""
    group = {"name": EVERYTHING.instance, "rules": list(RULES.values())}
    (folder / "rules.yaml").write_bytes(orjson.dumps({"groups": [group]}))
    promtest(promtool, folder, *cases)


def promtest(promtool: str, folder: Path, *cases: Mapping[str, Any]) -> None:
    """Let Prometheus evaluate `rules.yaml` for each case."""
    tests = [{"interval": "1m", **case} for case in cases]
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yaml").write_bytes(orjson.dumps(document))
    for words in (("check", "rules", "rules.yaml"), ("test", "rules", "tests.yaml")):
        done = subprocess.run(
            [promtool, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CASES)
def test_alerts_are_raised_for_their_cause_only(name: str, promtool: str, tmp_path: Path) -> None:
    told, raised = CASES[name]
    run(
        promtool,
        tmp_path,
        {
            "input_series": [
                {
                    "series": gateway_load(EVERYTHING) if metric == GATEWAY else series_of(metric),
                    "values": values,
                }
                for metric, values in told.items()
            ],
            "alert_rule_test": [
                {
                    "eval_time": "50m",
                    "alertname": alert,
                    "exp_alerts": [expected(alert)] if alert == raised else [],
                }
                for alert in RULES
            ],
        },
    )


def series_of(metric: str) -> str:
    metric, _, operator = metric.partition("@")
    found = of_pipeline(EVERYTHING, metric)
    return f'{found[:-1]},operator_name="{operator}"}}' if operator else found


@pytest.mark.parametrize(("interval_s", "window"), [(60, "[10m]"), (1200, "[40m]")])
def test_commits_are_expected_within_two_intervals(interval_s: float, window: str) -> None:
    pipeline = {**PIPELINE, "checkpoint": {"interval_s": interval_s}}
    found = {rule["alert"]: rule["expr"] for rule in rules(deployment_of(VARIANTS["everything"], pipeline))}
    assert found["ForebayCommitSlow"].count(window) == 3


def expected(alert: str) -> dict[str, Any]:
    """The alert as sent; that of a missing series names the series."""
    rule = RULES[alert]
    component = {"ForebayNoMetrics": "pipeline", "ForebayGatewayNoMetrics": "gateway"}.get(alert)
    looked_for = {} if component is None else EVERYTHING.selector(component)
    labels = {
        **rule["labels"],
        **{key.translate(str.maketrans("./-", "___")): value for key, value in looked_for.items()},
    }
    return {"exp_labels": labels, "exp_annotations": rule["annotations"]}


def test_the_queries_of_the_scaled_object_give_one_number_or_none(promtool: str, tmp_path: Path) -> None:
    (scaled,) = (each.body for each in render(EVERYTHING) if each.kind == "ScaledObject")
    queries = {
        trigger["name"]: trigger["metadata"]["query"]
        for trigger in scaled["spec"]["triggers"]
        if trigger["type"] == "prometheus"
    }

    def of_pod(name: str, pod: int) -> str:
        return f'{name[:-1]},pod="{pod}"}}'

    def case(told: Mapping[str, float], results: Mapping[str, float]) -> dict[str, Any]:
        return {
            "input_series": [{"series": name, "values": f"{value}x9"} for name, value in told.items()],
            "promql_expr_test": [
                {
                    "expr": query,
                    "eval_time": "5m",
                    "exp_samples": [{"labels": "{}", "value": results[name]}] if name in results else [],
                }
                for name, query in queries.items()
            ],
        }

    share = Share(2, 5)
    queries["share of wanted"] = wanted_query(EVERYTHING, share)
    queries["share of held"] = held_query(EVERYTHING, share)
    queries["share of gateway"] = gateway_query(EVERYTHING, share)
    queries["total"] = total_query(EVERYTHING, ReplicaScaling(by="hpa", max=9, requests_per_replica=8))
    pool = EVERYTHING.pools()[0]
    told: dict[str, float] = {}
    for pod, (wanted, in_flight, pending) in enumerate(((2, 10, 1), (3, 7, 0))):
        told[of_pod(of_pipeline(EVERYTHING, WANTED), pod)] = wanted
        told[of_pod(of_pipeline(EVERYTHING, IN_FLIGHT), pod)] = in_flight
        told[of_pod(of_pipeline(EVERYTHING, PENDING), pod)] = pending
        told[of_pod(series(RUNNING, pool.selector), pod)] = 0
        told[of_pod(gateway_load(EVERYTHING), pod)] = 8
    asked = {"wanted": 3, "share of wanted": 1.2, "held": 18, "share of held": 7.2, "ready": 2}
    loads = {"gateway": 16, "share of gateway": 6.4}
    run(
        promtool,
        tmp_path,
        # The loads add up: three replicas for the pipeline, and 16 requests of the gateway, eight for each.
        case(told, {**asked, **loads, "total": 5}),
        # Missing metrics give no number, except for replicas: no replica reports that it is ready.
        case({}, {"ready": 0}),
        case(
            {name: value for name, value in told.items() if WANTED not in name},
            {"held": 18, "ready": 2, "share of held": 7.2, **loads, "total": 18 / 8 + 2},
        ),
        case({name: value for name, value in told.items() if PEAK_LOAD not in name}, asked),
    )


@pytest.mark.parametrize(("name", "wanted"), [("gateway, by an adapter", 3 + 0.5), ("pools by dra", 3)])
def test_a_rule_records_what_an_adapter_serves(
    name: str, wanted: float, promtool: str, tmp_path: Path
) -> None:
    deployment = variant(name)
    (rule,) = (rule for rule in groups_of(deployment)["groups"][0]["rules"] if "record" in rule)
    told = {of_pipeline(deployment, WANTED): 3, gateway_load(deployment): 16}
    labels = '{app_kubernetes_io_instance="triage"}'
    (tmp_path / "rules.yaml").write_bytes(orjson.dumps(groups_of(deployment)))
    promtest(
        promtool,
        tmp_path,
        {
            "input_series": [{"series": name, "values": f"{value}x9"} for name, value in told.items()],
            "promql_expr_test": [
                {
                    "expr": rule["record"],
                    "eval_time": "5m",
                    "exp_samples": [{"labels": f"{rule['record']}{labels}", "value": wanted}],
                }
            ],
        },
    )


def groups_of(deployment: Deployment) -> dict[str, Any]:
    """The rule file of a deployment."""
    (text,) = (
        each.body["data"]["forebay.rules.yaml"]
        for each in render(deployment)
        if "forebay.rules.yaml" in each.body.get("data", {})
    )
    found: dict[str, Any] = YAML(typ="safe").load(text)
    return found
