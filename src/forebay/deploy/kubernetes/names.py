"""Valid Kubernetes names and labels for any pipeline name."""

from __future__ import annotations

import hashlib
import re

MAX_CHARS = 40
"""Leaves room for suffixes: Flink's operator takes 45 characters, a label 63."""
HASH_CHARS = 8
APPLICATION = "forebay"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"
POOL = "forebay/pool"


def instance_name(pipeline: str) -> str:
    """The prefix of a pipeline's object names: a DNS label (RFC 1035) of at most 40 characters.

    The pipeline's own name if valid, else with a hash of it, so that no two pipelines share one.

    >>> instance_name("triage")
    'triage'
    >>> instance_name("3-bears")
    'p-3-bears-0f44afa1'
    """
    if re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", pipeline) and len(pipeline) <= MAX_CHARS:
        return pipeline
    digest = hashlib.sha256(pipeline.encode()).hexdigest()[:HASH_CHARS]
    room = MAX_CHARS - HASH_CHARS - 1
    stem = pipeline if re.match(r"[a-z]", pipeline) else f"p-{pipeline}"
    return f"{stem[:room].rstrip('-')}-{digest}"


def labels(instance: str, component: str) -> dict[str, str]:
    """Labels of every object of a deployment; `--remove` selects by them."""
    return {
        "app.kubernetes.io/name": APPLICATION,
        **selector(instance, component),
        MANAGED_BY: APPLICATION,
    }


def selector(instance: str, component: str) -> dict[str, str]:
    """Selector of a component's pods; it must never change while they run."""
    return {INSTANCE: instance, COMPONENT: component}


def owned_by(instance: str) -> str:
    return f"{MANAGED_BY}={APPLICATION},{INSTANCE}={instance}"
