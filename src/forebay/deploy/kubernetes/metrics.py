"""Names of metrics in Prometheus. Flink's reporter adds the operator's group (docs/how-to/metrics.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from forebay.deploy.kubernetes.deployment import GATEWAY, PIPELINE, Deployment
from forebay.gateway.peak_load import PEAK_LOAD

PREFIX = "flink_taskmanager_job_task_operator_forebay"
WANTED = f"{PREFIX}_wanted_replicas"
"""Replicas requested by the scaling policy, booting ones included."""
BACKLOG_TOKENS = f"{PREFIX}_backlog_tokens"
DEADLINE_S = f"{PREFIX}_next_deadline_s"
REPLICAS = f"{PREFIX}_replicas"
"""Replicas that the job considers available."""
IN_FLIGHT = f"{PREFIX}_in_flight"
PENDING = f"{PREFIX}_pending"
RESULTS = f"{PREFIX}_results"
DEAD_LETTERS = f"{PREFIX}_dead_letters"
TOO_LARGE = f"{PREFIX}_too_large"
"""Results too large for their topic, now dead letters; missing for other sinks."""
RUNNING = "vllm:num_requests_running"
"""Every serving vLLM has it; one that still loads its model does not."""
EXTERNAL_METRIC = "forebay_wanted_replicas"
"""Replicas that pipeline and gateway need: recorded by a rule, served to an HPA by an adapter."""


def series_label(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", label)


def of_pipeline(deployment: Deployment, metric: str) -> str:
    return series(metric, deployment.selector(PIPELINE))


def gateway_load(deployment: Deployment) -> str:
    return series(PEAK_LOAD, deployment.selector(GATEWAY))


def series(metric: str, selector: Mapping[str, str]) -> str:
    """The series of the selected pods; the PodMonitor adds these labels."""
    chosen = ",".join(f'{series_label(label)}="{value}"' for label, value in selector.items())
    return f"{metric}{{{chosen}}}"
