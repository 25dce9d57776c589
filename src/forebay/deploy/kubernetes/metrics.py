"""The names under which Prometheus has what a pipeline and a gateway count. Flink's reporter puts the
operator's group before those of the pipeline (docs/how-to/metrics.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from forebay.deploy.kubernetes.deployment import GATEWAY, PIPELINE, Deployment
from forebay.gateway.peak_load import PEAK_LOAD

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
EXTERNAL_METRIC = "forebay_wanted_replicas"
"""The wanted number of replicas of pipeline and gateway together: a rule records it for a plain HPA, and an
adapter of external metrics serves it."""


def series_label(label: str) -> str:
    """What Prometheus calls the label of a pod."""
    return re.sub(r"[^A-Za-z0-9_]", "_", label)


def of_pipeline(deployment: Deployment, metric: str) -> str:
    """The series of this pipeline."""
    return series(metric, deployment.selector(PIPELINE))


def gateway_load(deployment: Deployment) -> str:
    """The series with the load of each pod of the gateway."""
    return series(PEAK_LOAD, deployment.selector(GATEWAY))


def series(metric: str, selector: Mapping[str, str]) -> str:
    """The series of the pods that `selector` selects; the PodMonitor gives them these labels."""
    chosen = ",".join(f'{series_label(label)}="{value}"' for label, value in selector.items())
    return f"{metric}{{{chosen}}}"
