"""Renders manifests from a pipeline and its deployment settings. Pure."""

from __future__ import annotations

from forebay.deploy.kubernetes.deployment import Deployment
from forebay.deploy.kubernetes.engine import engine_manifests
from forebay.deploy.kubernetes.gateway import gateway_manifests
from forebay.deploy.kubernetes.inference_pool import inference_pool_manifests
from forebay.deploy.kubernetes.manifest import Manifest
from forebay.deploy.kubernetes.monitoring import monitoring_manifests
from forebay.deploy.kubernetes.network import network_manifests
from forebay.deploy.kubernetes.pipeline import pipeline_manifests
from forebay.deploy.kubernetes.ray import ray_manifests
from forebay.deploy.kubernetes.scaling import scaling_manifests


def render(deployment: Deployment) -> tuple[Manifest, ...]:
    """Every manifest in order: network policies first, the pipeline after its engine."""
    return (
        *network_manifests(deployment),
        *engine_manifests(deployment),
        *ray_manifests(deployment),
        *inference_pool_manifests(deployment),
        *gateway_manifests(deployment),
        *scaling_manifests(deployment),
        *monitoring_manifests(deployment),
        *pipeline_manifests(deployment),
    )
