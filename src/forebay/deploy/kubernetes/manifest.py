"""Manifests as values, and as readable YAML with ordered keys and comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

COMMENT_WIDTH = 96


@dataclass(frozen=True, slots=True)
class Kind:
    api_version: str
    plural: str
    comes_with: str = "a newer Kubernetes"


OPERATOR, PROMETHEUS = "the Flink Kubernetes operator", "the Prometheus operator"
INFERENCE = "the Gateway API inference extension"
CLAIMS = "Kubernetes 1.34, with dynamic resource allocation"
RIGHTS = "rbac.authorization.k8s.io/v1"
KINDS: dict[str, Kind] = {
    "FlinkDeployment": Kind("flink.apache.org/v1beta1", "flinkdeployments", OPERATOR),
    "ScaledObject": Kind("keda.sh/v1alpha1", "scaledobjects", "KEDA"),
    "HorizontalPodAutoscaler": Kind("autoscaling/v2", "horizontalpodautoscalers"),
    "PodMonitor": Kind("monitoring.coreos.com/v1", "podmonitors", PROMETHEUS),
    "PrometheusRule": Kind("monitoring.coreos.com/v1", "prometheusrules", PROMETHEUS),
    "InferencePool": Kind("inference.networking.k8s.io/v1", "inferencepools", INFERENCE),
    "RayService": Kind("ray.io/v1", "rayservices", "KubeRay"),
    "Deployment": Kind("apps/v1", "deployments"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
    "Service": Kind("v1", "services"),
    "ResourceClaimTemplate": Kind("resource.k8s.io/v1", "resourceclaimtemplates", CLAIMS),
    "ConfigMap": Kind("v1", "configmaps"),
    "RoleBinding": Kind(RIGHTS, "rolebindings"),
    "Role": Kind(RIGHTS, "roles"),
    "ServiceAccount": Kind("v1", "serviceaccounts"),
    "NetworkPolicy": Kind("networking.k8s.io/v1", "networkpolicies"),
}
"""In order of removal."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """`part`: its component and file. `notes`: comments by the path of the key below them, such as
    `spec/ports/0/name`."""

    part: str
    body: Mapping[str, Any]
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def manifest(
    part: str,
    kind: str,
    name: str,
    content: Mapping[str, Any],
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> Manifest:
    """`content` has the keys other than `metadata`."""
    metadata: dict[str, Any] = {"name": name, "labels": dict(labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    body = {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": metadata, **content}
    return Manifest(part, body, notes or {})


def to_yaml(manifests: Iterable[Manifest]) -> str:
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 4096
    yaml.representer.ignore_aliases = lambda *_: True
    parts = []
    for each in manifests:
        out = StringIO()
        yaml.dump(_commented(each.body, "", each.notes), out)
        parts.append(out.getvalue())
    return "---\n".join(parts)


def _commented(value: Any, where: str, notes: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        made = CommentedMap()
        for key, inner in value.items():
            path = f"{where}/{key}" if where else key
            made[key] = _commented(inner, path, notes)
            if path in notes:
                column = 2 * sum(not step.isdigit() for step in where.split("/")) if where else 0
                made.yaml_set_comment_before_after_key(key, before=_wrapped(notes[path]), indent=column)
        return made
    if isinstance(value, list | tuple):
        return CommentedSeq([_commented(each, f"{where}/{at}", notes) for at, each in enumerate(value)])
    if isinstance(value, str):
        return _text(value)
    return value


AMBIGUOUS = re.compile(r"[-+.0-9][-+.0-9eE_:xob]*|true|false|yes|no|on|off|y|n|null|~|", re.IGNORECASE)
"""Texts that some YAML reader parses as another type."""


def _text(value: str) -> Any:
    if "\n" in value and all(line.isprintable() for line in value.split("\n")):
        return LiteralScalarString(value)
    return DoubleQuotedScalarString(value) if AMBIGUOUS.fullmatch(value) else value


def _wrapped(text: str) -> str:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > COMMENT_WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])
