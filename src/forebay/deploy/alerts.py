"""Prometheus' alerts about pipelines, for docs/grafana/alerts.yaml and for Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from forebay.flink.metric_names import full_name

RUNBOOK = "docs/how-to/metrics.md"
JOB = "flink_jobmanager_job_"
KAFKA_WAITS = "flink_taskmanager_job_task_operator_pendingRecords"
"""Flink's own count, without what Kafka's client has fetched."""


@dataclass(frozen=True, slots=True)
class AlertScope:
    """`of` selects series of a metric, `by` groups them, `name` is used in a summary."""

    of: Callable[[str], str] = str
    by: str = " by (job_name) "
    name: str = "{{ $labels.job_name }}"
    commits: str = "10m"

    def sum(self, metric: str, over: str = "") -> str:
        series = self.of(full_name(metric))
        return f"sum{self.by}({series})" if not over else f"sum{self.by}(increase({series}[{over}]))"

    def min(self, metric: str) -> str:
        return f"min{self.by}({self.of(full_name(metric))})"


def pipeline_alerts(scope: AlertScope) -> Iterator[dict[str, Any]]:
    name, total = scope.name, scope.sum

    def left(over: str) -> str:
        return f"({total('findings', over)} or {total('results', over)})"

    # The functions in front of the operator `infer` have dead letters of their own, and far more records.
    each = replace(scope, by=" by (job_name, operator_name) ").sum
    held = f"{total('in_flight')} + {total('pending')} > 0"
    unanswered = f"{each('results', '5m')} + {each('dead_letters', '5m')} == 0"
    yield alert(
        "ForebayStuck",
        f"count{scope.by}({each('in_flight')} + {each('pending')} > 0 and {unanswered})",
        "10m",
        f"Pipeline {name} holds events and has answered none for ten minutes.",
        "Look at the engine's replicas, then at the job's log.",
    )
    yield alert(
        "ForebayNoReplica",
        f"{scope.min('replicas')} == 0 and {held}",
        "10m",
        f"Pipeline {name} holds events, and has had no replica for them for ten minutes.",
        "Start the engine, or look at why its replicas fail.",
    )
    yield alert(
        "ForebayLagGrows",
        f"sum{scope.by}(deriv({scope.of(KAFKA_WAITS)}[15m])) > 0 and {total(KAFKA_WAITS)} > 1000",
        "30m",
        f"More and more records wait in the topics of pipeline {name}.",
        "Add replicas; if calls in flight are far below capacity, raise parallelism.",
    )
    read = f"({each('records', '15m')} or {each('accepted', '15m')} + {each('restored', '15m')})"
    dead = f"count{scope.by}({each('dead_letters', '15m')} > 0.05 * {read} + 1)"
    yield alert(
        "ForebayDeadLetters",
        f"{dead} or {total('too_large', '15m')} > 0.05 * {left('15m')} + 1",
        "15m",
        f"More than 5 % of the events of {name} become dead letters.",
        "The dead letters name the cause.",
    )
    failed, completed = total(f"{JOB}numberOfFailedCheckpoints", "15m"), f"{JOB}numberOfCompletedCheckpoints"
    yield alert(
        "ForebayCheckpointsFail",
        f"{failed} > {total(completed, '15m')}",
        "5m",
        f"Most checkpoints of pipeline {name} fail, so its results are not committed.",
        "The job's log has the reason: often the folder or object store of the checkpoints.",
    )
    took = f"max{scope.by}({scope.of(f'{JOB}lastCheckpointDuration')}) / 1000"
    yield alert(
        "ForebayCommitSlow",
        f"{took} > 60 or ({left(scope.commits)} > 0 and {total(completed, scope.commits)} == 0)",
        "5m",
        f"Results of pipeline {name} are committed more than a minute after they left, or not at all.",
        "Look at the store of the checkpoints, and at what holds back the job's slowest task.",
    )
    yield alert(
        "ForebayJournalFails",
        f"{total('journal_failures', '15m')} > 0",
        "5m",
        f"The journal of pipeline {name} fails: after a crash, answers will be paid for twice.",
        "Look at the journal's disk or object store.",
    )


def alert(name: str, expression: str, for_: str, summary: str, action: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": for_,
        "labels": {"severity": "warning"},
        "annotations": {"summary": summary, "action": action, "runbook": f"{RUNBOOK}#{name.lower()}"},
    }
