"""Deployments for rendering."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from forebay.deploy.kubernetes import Deployment, load_deployment
from forebay.deploy.kubernetes.deployment import Job

PIPELINE: dict[str, Any] = {
    "name": "triage",
    "source": {"type": "kafka", "bootstrap": "kafka:9092", "topics": ["tickets"]},
    "prompt": "Which team should take this ticket?\n{{ text }}\n",
    "engine": {"model": "smollm2", "api_key": {"env": "ENGINE_KEY"}},
    "parallelism": 2,
    "scaling": {"min": 0, "max": 4},
    "sink": {"type": "kafka", "bootstrap": "kafka:9092", "topic": "answers"},
    "dead_letters": {"type": "kafka", "bootstrap": "kafka:9092", "topic": "dead"},
}
SECRETS = {"ENGINE_KEY": {"name": "forebay", "key": "engine-key"}}
JOB: dict[str, Any] = {
    "image": "registry.example/pipeline:1",
    "state": "s3://bucket/triage",
    "secrets": SECRETS,
}
ENGINE: dict[str, Any] = {"image": "vllm/vllm-openai:v0.32.0", "model": "HuggingFaceTB/SmolLM2-135M-Instruct"}
SCALING: dict[str, Any] = {"max": 4, "prometheus": "http://prometheus.monitoring:9090"}
GATEWAY_SECRETS = {**SECRETS, "GATEWAY_KEY": {"name": "forebay", "key": "gateway-key"}}
GATEWAY: dict[str, Any] = {
    "image": "registry.example/gateway:1",
    "config": str(Path(__file__).with_name("gateway.yaml")),
    "secrets": GATEWAY_SECRETS,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "smallest": {"pipeline": JOB, "engine": ENGINE},
    "everything": {
        "pipeline": {
            **JOB,
            "volumes": [{"path": "/data", "claim": "data"}, {"path": "/secret", "secret": "certificates"}],
            "pull_secrets": ["registry"],
            "service_account_annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"},
        },
        "engine": {
            **ENGINE,
            "gpu": {"resource": "nvidia.com/gpu"},
            "tolerations": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
            "node_selector": {"gpu": "h100"},
            "cache": {"claim": "models"},
        },
        "gateway": {**GATEWAY, "from_namespaces": ["ingress"]},
        "scaling": {**SCALING, "min": 0, "max": 20},
    },
    "pools by dra": {
        "pipeline": JOB,
        "engine": {
            **ENGINE,
            "gpu": {"device_class": "gpu.nvidia.com", "count": 2},
            "pools": [
                {"name": "prefill"},
                {"name": "decode", "replicas": 2, "share": 3, "args": ["--max-num-seqs=64"]},
            ],
            "egress": False,
            "rollout": "replace",
        },
        "scaling": {"by": "hpa", "max": 8},
    },
    "controller": {
        "pipeline": JOB,
        "engine": {**ENGINE, "pools": [{"name": "prefill"}, {"name": "decode", "share": 2}]},
        "scaling": {"by": "controller", "image": "registry.example/gateway:1", "min": 0, "max": 6},
    },
    "prefill and decode": {
        "pipeline": JOB,
        "engine": {
            **ENGINE,
            "gpu": {"resource": "nvidia.com/gpu"},
            "pools": [
                {"name": "prefill", "role": "prefill"},
                {"name": "decode", "role": "decode", "share": 3, "args": ["--max-num-seqs=64"]},
            ],
        },
        "gateway": GATEWAY,
        "scaling": {**SCALING, "min": 0, "max": 8},
    },
    "inference pool": {
        "pipeline": JOB,
        "engine": ENGINE,
        "inference_pool": {
            "url": "http://inference-gateway",
            "endpoint_picker": {"name": "picker"},
            "objectives": {"urgent": 0, "batch": 10},
        },
        "monitoring": {"pod_monitor": False, "rules": "none"},
    },
    "ray": {
        "pipeline": {**JOB, "upgrade": "last-state"},
        "engine": {**ENGINE, "image": "registry.example/ray:1", "gpu": {"resource": "nvidia.com/gpu"}},
        "ray": {"gateway_class": "istio", "token_secret": "ray"},
    },
    "ray, scaled": {
        "pipeline": JOB,
        "engine": {
            **ENGINE,
            "image": "registry.example/ray:1",
            "gpu": {"device_class": "gpu.nvidia.com", "count": 2},
            "cache": {"claim": "models"},
        },
        "ray": {"gateway_class": "istio", "token_secret": "ray", "surge_percent": 25},
        "gateway": GATEWAY,
        "scaling": {"by": "controller", "image": "registry.example/gateway:1", "min": 0, "max": 8},
    },
    "gateway alone": {
        "name": "triage",
        "engine": {**ENGINE, "gpu": {"resource": "nvidia.com/gpu"}},
        "gateway": GATEWAY,
        "scaling": {**SCALING, "min": 0},
    },
    "gateway alone, by a controller": {
        "name": "triage",
        "engine": ENGINE,
        "gateway": GATEWAY,
        "scaling": {"by": "controller", "image": "registry.example/gateway:1", "min": 0, "max": 6},
    },
    "gateway, by an adapter": {
        "pipeline": JOB,
        "engine": ENGINE,
        "gateway": GATEWAY,
        "scaling": {"by": "hpa", "max": 8},
    },
}


def deployment_of(settings: Mapping[str, Any], pipeline: Mapping[str, Any] | None = PIPELINE) -> Deployment:
    """The result of `load_deployment` for these two values; without a pipeline, for the first."""
    with tempfile.TemporaryDirectory() as folder:
        # JSON is YAML.
        file, config = Path(folder, "pipeline.yaml"), Path(folder, "deploy.yaml")
        config.write_bytes(orjson.dumps(dict(settings)))
        if pipeline is None:
            return load_deployment(None, config)
        file.write_bytes(orjson.dumps(dict(pipeline)))
        return load_deployment(file)


def job_of(deployment: Deployment) -> Job:
    assert deployment.job is not None
    return deployment.job


@cache
def variant(name: str) -> Deployment:
    settings = VARIANTS[name]
    return deployment_of(settings, PIPELINE if "pipeline" in settings else None)
