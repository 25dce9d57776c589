"""Renders manifests, and writes them for version control."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from forebay.deploy.kubernetes.deployment import Deployment
from forebay.deploy.kubernetes.engine import engine_manifests, inference_pool_manifests
from forebay.deploy.kubernetes.gateway import gateway_manifests
from forebay.deploy.kubernetes.manifest import Manifest, to_yaml
from forebay.deploy.kubernetes.monitoring import monitoring_manifests
from forebay.deploy.kubernetes.network import network_manifests
from forebay.deploy.kubernetes.pipeline import pipeline_manifests
from forebay.deploy.kubernetes.ray import ray_manifests
from forebay.deploy.kubernetes.scaling import scaling_manifests
from forebay.errors import SettingError


def render(deployment: Deployment) -> tuple[Manifest, ...]:
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


HEAD = "# Made by `forebay deploy kubernetes`: change the deployment file, then run it again.\n"
IMAGE_FILES = PIPELINE_IMAGE, GATEWAY_IMAGE, RAY_IMAGE = (
    "images/pipeline.Dockerfile",
    "images/gateway.Dockerfile",
    "images/ray.Dockerfile",
)
KUSTOMIZATION = "kustomization.yaml"
IMAGES = Path(__file__).parent.parent / "images"
PARTS = ("autoscaler", "engine", "gateway", "inference-pool", "monitoring", "pipeline", "ray", "scaling")


def write_manifests(
    manifests: Sequence[Manifest], folder: Path, namespace: str | None, connectors: Collection[str] = ()
) -> tuple[Path, ...]:
    """Deletes only files of parts that no longer exist. Raises `SettingError` if the folder is not
    writable."""
    files: dict[str, str] = {}
    for part in PARTS:
        of_part = [each for each in manifests if each.part == part]
        if of_part:
            files[f"{part}.yaml"] = HEAD + to_yaml(of_part)
    resources = "".join(f"- {name}\n" for name in files)
    place = f"namespace: {namespace}\n" if namespace else ""
    files[KUSTOMIZATION] = (
        f"{HEAD}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"{place}resources:\n{resources}"
    )
    if "pipeline.yaml" in files:
        files[PIPELINE_IMAGE] = pipeline_image(connectors)
    if {"gateway.yaml", "autoscaler.yaml"} & files.keys():
        files[GATEWAY_IMAGE] = (IMAGES / "gateway.Dockerfile").read_text()
    if "ray.yaml" in files:
        files[RAY_IMAGE] = (IMAGES / "ray.Dockerfile").read_text()
    try:
        (folder / "images").mkdir(parents=True, exist_ok=True)
        for name in (*(f"{part}.yaml" for part in PARTS), *IMAGE_FILES):
            if name not in files:
                (folder / name).unlink(missing_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"--out: {folder} cannot be written: {error.strerror}") from None
    return tuple(folder / name for name in files)


def pipeline_image(connectors: Collection[str]) -> str:
    text = (IMAGES / "pipeline.Dockerfile").read_text()
    for name in connectors:
        text = text.replace(f"# COPY flink-sql-connector-{name}-", f"COPY flink-sql-connector-{name}-")
    return text
