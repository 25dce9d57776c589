"""Converts a pod's manifest to a process: command, environment, files and probes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.errors import SettingError

VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True, slots=True)
class Image:
    """Replaces a container image."""

    entrypoint: tuple[str, ...] = ()
    programs: Path | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """An HTTP probe: whether a container has started or is ready."""

    port: int
    path: str
    every_s: float
    failures: int
    timeout_s: float

    @classmethod
    def parse(cls, container: Mapping[str, Any], name: str) -> Probe | None:
        probe = container.get(name) or {}
        if "httpGet" not in probe:
            return None
        port = probe["httpGet"]["port"]
        if not isinstance(port, int):
            port = next(one["containerPort"] for one in container["ports"] if one["name"] == port)
        return cls(
            port,
            probe["httpGet"].get("path", "/"),
            probe.get("periodSeconds", 10),
            probe.get("failureThreshold", 3),
            probe.get("timeoutSeconds", 1),
        )


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start, and a command to run before its SIGTERM, or an empty one."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    before_stop: tuple[str, ...] = ()


def mounts(spec: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    return {
        each["mountPath"]: folder / each["name"] for each in spec["containers"][0].get("volumeMounts") or ()
    }


def mapped(text: str, mounted: Mapping[str, Path]) -> str:
    if not mounted:
        return text
    paths = "|".join(re.escape(path) for path in sorted(mounted, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({paths})(?=/|$)", lambda found: str(mounted[found[1]]), text)


def command_of(
    spec: Mapping[str, Any],
    image: Image,
    fields: Mapping[str, str],
    base: Mapping[str, str],
    mounted: Mapping[str, Path],
) -> Command:
    """The process of a pod's first container. `fields`: the downward API; `base`: the node's environment.

    Raises `SettingError` for what the node does not support.
    """
    container = spec["containers"][0]
    environment = dict(base)
    if image.programs is not None:
        environment["PATH"] = f"{image.programs}:{environment['PATH']}"
    for variable in container.get("env") or ():
        environment[variable["name"]] = _value(variable, fields, mounted)
    given = [*(container.get("command") or ()), *(container.get("args") or ())]
    words = [VARIABLE.sub(lambda found: environment.get(found[1], found[0]), word) for word in given]
    # Programs of this machine may be below a path at which the container mounts a volume.
    entrypoint = () if container.get("command") else image.entrypoint
    hook = (container.get("lifecycle") or {}).get("preStop") or {}
    before_stop = (hook.get("exec") or {}).get("command") or ()
    return Command(
        (*entrypoint, *(mapped(word, mounted) for word in words)),
        environment,
        tuple(mapped(word, mounted) for word in before_stop),
    )


def _value(variable: Mapping[str, Any], fields: Mapping[str, str], mounted: Mapping[str, Path]) -> str:
    if "value" in variable:
        return mapped(variable["value"], mounted)
    path = (variable.get("valueFrom") or {}).get("fieldRef", {}).get("fieldPath")
    if path not in fields:
        raise SettingError(f"{variable['name']}: this node has no {variable.get('valueFrom')}")
    return fields[path]
