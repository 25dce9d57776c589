"""Prometheus' alerts about pipelines: for docs/grafana/alerts.yaml, and for a deployment on Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from forebay.flink.metric_names import BY_NAME, PREFIX

RUNBOOK = "docs/how-to/metrics.md"
JOB = "flink_jobmanager_job_"
KAFKA_WAITS = "flink_taskmanager_job_task_operator_pendingRecords"
"""Flink's own count, which leaves out what Kafka's client has fetched."""


@dataclass(frozen=True, slots=True)
class AlertScope:
    """`of` selects series of a metric, `by` groups them, and `name` is the pipeline's in a summary."""

    of: Callable[[str], str] = str
    by: str = " by (job_name) "
    name: str = "{{ $labels.job_name }}"

    def sum(self, metric: str, over: str = "") -> str:
        series = self.of(_full(metric))
        return f"sum{self.by}({series})" if not over else f"sum{self.by}(increase({series}[{over}]))"

    def min(self, metric: str) -> str:
        return f"min{self.by}({self.of(_full(metric))})"


def _full(metric: str) -> str:
    found = BY_NAME.get(metric)
    return metric if found is None else PREFIX + found.exported[0]


def pipeline_alerts(scope: AlertScope) -> Iterator[dict[str, Any]]:
    name, total = scope.name, scope.sum
    held = f"({total('in_flight')} + {total('pending')})"
    answered = f"{total('results', '10m')} + {total('dead_letters', '10m')}"
    yield alert(
        "ForebayStuck",
        f"{held} > 0 and {answered} == 0",
        "5m",
        f"Pipeline {name} holds events and has answered none for ten minutes.",
        "Look at the engine's replicas, then at the job's log.",
    )
    yield alert(
        "ForebayNoReplica",
        f"{scope.min('replicas')} == 0",
        "2m",
        f"No replica gets requests of pipeline {name}.",
        "Start the engine, or look at why its replicas fail.",
    )
    yield alert(
        "ForebayLagGrows",
        f"sum{scope.by}(deriv({scope.of(KAFKA_WAITS)}[15m])) > 0 and {total(KAFKA_WAITS)} > 1000",
        "30m",
        f"More and more records wait in the topics of pipeline {name}.",
        "Add replicas; if calls in flight are far below capacity, raise parallelism.",
    )
    refused = f"({total('too_large', '15m')} or 0 * {total('results', '15m')})"
    yield alert(
        "ForebayDeadLetters",
        f"{total('dead_letters', '15m')} + {refused} > 0.05 * {total('results', '15m')} + 1",
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
        f"{took} > 60 or ({total('results', '10m')} > 0 and {total(completed, '10m')} == 0)",
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
