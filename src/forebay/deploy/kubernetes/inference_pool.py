"""The replicas as an InferencePool of the Gateway API."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.deploy.kubernetes.deployment import ENGINE, ENGINE_PORT, Deployment
from forebay.deploy.kubernetes.manifest import Manifest, manifest


def inference_pool_manifests(deployment: Deployment) -> Iterator[Manifest]:
    wanted = deployment.settings.inference_pool
    if wanted is None:
        return
    picker = wanted.endpoint_picker
    spec = {
        "selector": {"matchLabels": deployment.selector(ENGINE)},
        "targetPorts": [{"number": ENGINE_PORT}],
        "endpointPickerRef": {
            "name": picker.name,
            "port": {"number": picker.port},
            "failureMode": "FailOpen",
        },
    }
    yield manifest(
        "inference-pool",
        "inference.networking.k8s.io/v1",
        "InferencePool",
        deployment.name(ENGINE),
        {"spec": spec},
        labels=deployment.labels(ENGINE),
        notes={
            (
                "spec",
                "endpointPickerRef",
                "failureMode",
            ): "Without the picker any replica is better than none."
        },
    )
