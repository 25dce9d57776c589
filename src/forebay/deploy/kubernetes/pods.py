"""What all pods share: the `restricted` security standard, resources, secrets, volumes, rights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forebay.deploy.fields import SecretKey
from forebay.deploy.kubernetes.deployment import Deployment
from forebay.deploy.kubernetes.manifest import Manifest
from forebay.deploy.kubernetes.pod_settings import PodSpec

USER = 9999
"""The Flink image's own user; the other images run as any user."""
CONFIG_PATH = "/etc/forebay"
CONFIG = "config"

Volume = tuple[dict[str, Any], dict[str, Any]]


def container_security() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def resources(spec: PodSpec, extra: Mapping[str, str] | None = None) -> dict[str, Any]:
    fixed = {"memory": spec.memory, **(extra or {})}
    return {"requests": {"cpu": spec.cpu, **fixed}, "limits": fixed}


def environment(
    spec: PodSpec, own: Mapping[str, str] | None = None, secrets: Mapping[str, SecretKey] | None = None
) -> list[dict[str, Any]]:
    """`spec` overrides `own` and `secrets`; its secrets override its `env`. Secrets come first, so that
    others may use `$(NAME)`."""
    ours = {name: ref for name, ref in (secrets or {}).items() if name not in spec.env}
    held = {**ours, **spec.secrets}
    plain = {name: value for name, value in {**(own or {}), **spec.env}.items() if name not in held}
    return [*from_secrets(held), *({"name": name, "value": value} for name, value in plain.items())]


def from_secrets(secrets: Mapping[str, SecretKey]) -> list[dict[str, Any]]:
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}
        for name, ref in secrets.items()
    ]


def scratch(name: str, path: str, size: str, *, memory: bool = False) -> Volume:
    source: dict[str, Any] = {"medium": "Memory"} if memory else {}
    return {"name": name, "emptyDir": {**source, "sizeLimit": size}}, {"name": name, "mountPath": path}


def config_files(config_map: str) -> Volume:
    volume = {"name": CONFIG, "configMap": {"name": config_map}}
    return volume, {"name": CONFIG, "mountPath": CONFIG_PATH, "readOnly": True}


def mounted(spec: PodSpec) -> list[Volume]:
    found: list[Volume] = []
    for at, volume in enumerate(spec.volumes):
        name = f"volume-{at}"
        mount: dict[str, Any] = {"name": name, "mountPath": volume.path}
        if volume.claim is not None:
            found.append(({"name": name, "persistentVolumeClaim": {"claimName": volume.claim}}, mount))
        elif volume.secret is not None:
            source = {"secret": {"secretName": volume.secret, "defaultMode": 0o440}}
            found.append(({"name": name, **source}, {**mount, "readOnly": True}))
        else:
            source = {"configMap": {"name": volume.config_map}}
            found.append(({"name": name, **source}, {**mount, "readOnly": True}))
    return found


def placement(spec: PodSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if spec.node_selector:
        found["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        found["tolerations"] = [
            {
                "key": each.key,
                "operator": "Exists" if each.value is None else "Equal",
                **({} if each.value is None else {"value": each.value}),
                **({} if each.effect is None else {"effect": each.effect}),
            }
            for each in spec.tolerations
        ]
    if spec.pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in spec.pull_secrets]
    return found


def spread(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(labels)},
        }
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]


def pod_spec(
    container: Mapping[str, Any], volumes: Sequence[Volume], fields: Mapping[str, Any]
) -> dict[str, Any]:
    mounts = [mount for _, mount in volumes]
    return {
        **fields,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{**container, "securityContext": container_security(), "volumeMounts": mounts}],
        "volumes": [volume for volume, _ in volumes],
    }


def config_hash(data: Mapping[str, str]) -> dict[str, str]:
    """A pod annotation that restarts the pods if the ConfigMap changes."""
    text = "\0".join(f"{name}\0{content}" for name, content in sorted(data.items()))
    return {"forebay/config": hashlib.sha256(text.encode()).hexdigest()[:16]}


def http_probe(path: str, port: str, *, every_s: int, failures: int, timeout_s: int = 5) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": every_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


GROUP = "rbac.authorization.k8s.io"
Rule = dict[str, Any]
ENDPOINTS: Rule = {
    "apiGroups": ["discovery.k8s.io"],
    "resources": ["endpointslices"],
    "verbs": ["list", "watch"],
}


def role(
    deployment: Deployment, component: str, rules: Sequence[Rule], why: str, *, account: str | None = None
) -> Iterator[Manifest]:
    name = deployment.name(account or component)
    yield deployment.manifest(component, "Role", {"rules": list(rules)}, name=name, notes={"rules": why})
    binding = {
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name}],
    }
    yield deployment.manifest(component, "RoleBinding", binding, name=name)
