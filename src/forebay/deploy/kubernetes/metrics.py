"""The names under which Prometheus has what a pipeline counts: Flink's reporter puts the operator's group
before them (docs/how-to/metrics.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from forebay.deploy.kubernetes.deployment import PIPELINE, Deployment

PREFIX = "flink_taskmanager_job_task_operator_forebay"
WANTED = f"{PREFIX}_wanted_replicas"
"""Replicas that the scaling policy wants, those that boot included."""
BACKLOG_TOKENS = f"{PREFIX}_backlog_tokens"
DEADLINE_S = f"{PREFIX}_next_deadline_s"
REPLICAS = f"{PREFIX}_replicas"
"""Replicas that may get requests now, as far as the job knows."""
IN_FLIGHT = f"{PREFIX}_in_flight"
PENDING = f"{PREFIX}_pending"
RESULTS = f"{PREFIX}_results"
DEAD_LETTERS = f"{PREFIX}_dead_letters"
TOO_LARGE = f"{PREFIX}_too_large"
"""Results that were too large for their topic and became dead letters; missing if the sink is not a topic."""
RUNNING = "vllm:num_requests_running"
"""Each vLLM that serves has this; one that still loads its model has nothing."""


def series_label(label: str) -> str:
    """What Prometheus calls the label of a pod."""
    return re.sub(r"[^A-Za-z0-9_]", "_", label)


def of_pipeline(deployment: Deployment, metric: str) -> str:
    """The series of this pipeline."""
    return series(metric, deployment.selector(PIPELINE))


def series(metric: str, selector: Mapping[str, str]) -> str:
    """The series of the pods that `selector` selects; the PodMonitor gives them these labels."""
    chosen = ",".join(f'{series_label(label)}="{value}"' for label, value in selector.items())
    return f"{metric}{{{chosen}}}"
