"""Alerts tell what a person can do, and Prometheus computes them, and KEDA's queries, as they are meant."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.harness.deployments import variant

from forebay.autoscale.shares import Share
from forebay.deploy.kubernetes import render
from forebay.deploy.kubernetes.metrics import (
    DEAD_LETTERS,
    IN_FLIGHT,
    PENDING,
    RESULTS,
    RUNNING,
    TOO_LARGE,
    WANTED,
    of_pipeline,
    series,
)
from forebay.deploy.kubernetes.monitoring import rules
from forebay.deploy.kubernetes.scaling import held_query, wanted_query


@pytest.mark.parametrize(
    ("name", "says"), [("everything", "Raise scaling.max,"), ("smallest", "Raise engine.replicas,")]
)
def test_a_fleet_that_is_too_small_is_told_by_the_setting_that_it_has(name: str, says: str) -> None:
    actions = {rule["alert"]: rule["annotations"]["action"] for rule in rules(variant(name))}
    assert actions["ForebayBehind"].startswith(says)
    assert ("scaling.max" in actions["ForebayBehind"]) == (variant(name).settings.scaling is not None)


EVERYTHING = variant("everything")
RULES = {rule["alert"]: rule for rule in rules(EVERYTHING)}
FULL = EVERYTHING.pipeline.capacity * EVERYTHING.pipeline.parallelism
OPERATOR = (RESULTS, DEAD_LETTERS, IN_FLIGHT, PENDING)
IDLE = dict.fromkeys(OPERATOR, "0x60")
"""A pipeline with nothing to do, for an hour; `A+BxN` is A, and N times B more."""
CASES: dict[str, tuple[Mapping[str, str], str | None]] = {
    "idle": (IDLE, None),
    "it answers": ({**IDLE, IN_FLIGHT: "5x60", RESULTS: "0+10x60"}, None),
    "it began anew": ({**IDLE, IN_FLIGHT: "5x60", RESULTS: "900+10x20 0+10x40"}, None),
    "no metrics": ({}, "ForebayNoMetrics"),
    "no answers": ({**IDLE, IN_FLIGHT: "5x60", RESULTS: "10x60"}, "ForebayStuck"),
    "dead letters only": ({**IDLE, PENDING: "5x60", DEAD_LETTERS: "0+10x60"}, "ForebayDeadLetters"),
    "a dead letter in ten": (
        {**IDLE, IN_FLIGHT: "5x60", RESULTS: "0+90x60", DEAD_LETTERS: "0+10x60"},
        "ForebayDeadLetters",
    ),
    "a result in ten is too large": (
        {**IDLE, IN_FLIGHT: "5x60", RESULTS: "0+100x60", TOO_LARGE: "0+10x60"},
        "ForebayDeadLetters",
    ),
    "a dead letter in a hundred": (
        {**IDLE, IN_FLIGHT: "5x60", RESULTS: "0+99x60", DEAD_LETTERS: "0+1x60"},
        None,
    ),
    "full": ({**IDLE, IN_FLIGHT: f"{FULL}x60", RESULTS: "0+9x60"}, "ForebayBehind"),
    "nearly full": ({**IDLE, IN_FLIGHT: f"{FULL - 1}x60", RESULTS: "0+9x60"}, None),
}


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool, which evaluates rules: it comes with Prometheus (apt install prometheus)")
    return found


def run(promtool: str, folder: Path, *cases: Mapping[str, Any]) -> None:
    """Have Prometheus' own evaluation compare; JSON is YAML."""
    group = {"name": EVERYTHING.instance, "rules": list(RULES.values())}
    (folder / "rules.yaml").write_bytes(orjson.dumps({"groups": [group]}))
    tests = [{"interval": "1m", **case} for case in cases]
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yaml").write_bytes(orjson.dumps(document))
    for words in (("check", "rules", "rules.yaml"), ("test", "rules", "tests.yaml")):
        done = subprocess.run(
            [promtool, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CASES)
def test_an_alert_is_raised_for_what_it_says_and_for_nothing_else(
    name: str, promtool: str, tmp_path: Path
) -> None:
    told, raised = CASES[name]
    run(
        promtool,
        tmp_path,
        {
            "input_series": [
                {"series": of_pipeline(EVERYTHING, metric), "values": values}
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


def expected(alert: str) -> dict[str, Any]:
    """The alert as a person gets it; that of a missing series names what was looked for."""
    rule = RULES[alert]
    looked_for = {
        key.translate(str.maketrans("./-", "___")): value
        for key, value in EVERYTHING.selector("pipeline").items()
    }
    labels = {**rule["labels"], **(looked_for if alert == "ForebayNoMetrics" else {})}
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
    pool = EVERYTHING.pools()[0]
    told: dict[str, float] = {}
    for pod, (wanted, in_flight, pending) in enumerate(((2, 10, 1), (3, 7, 0))):
        told[of_pod(of_pipeline(EVERYTHING, WANTED), pod)] = wanted
        told[of_pod(of_pipeline(EVERYTHING, IN_FLIGHT), pod)] = in_flight
        told[of_pod(of_pipeline(EVERYTHING, PENDING), pod)] = pending
        told[of_pod(series(RUNNING, pool.selector), pod)] = 0
    run(
        promtool,
        tmp_path,
        case(told, {"wanted": 3, "held": 18, "ready": 2, "share of wanted": 2, "share of held": 7.2}),
        # What is not there is no number, but for replicas: none tells that it is ready.
        case({}, {"ready": 0}),
        case(
            {name: value for name, value in told.items() if WANTED not in name},
            {"held": 18, "ready": 2, "share of held": 7.2},
        ),
    )
