"""Converts a pod's manifest to a process: command, environment, files and probes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kubernetes.burst import CONTROLLER_IMAGE, ENGINE_IMAGE, PIPELINE_IMAGE, BurstOptions
from forebay.engine.launch.environment import DEFAULT_MODEL
from forebay.engine.launch.local import best_type
from forebay.engine.launch.spec import compute_environment
from forebay.errors import SettingError, SetupError
from forebay.settings import Settings

VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True, slots=True)
class Image:
    entrypoint: tuple[str, ...] = ()
    programs: Path | None = None


@dataclass(frozen=True, slots=True)
class Probe:
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
    """The process of a pod's first container."""
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


FOREBAY = Image(entrypoint=(sys.executable, "-m", "forebay"))
SCRIPTED_ANSWER_S = 0.5
SCRIPTED_SLOTS = 4
REAL_ANSWER_TOKENS = 96


def scripted_burst() -> BurstOptions:
    """Answers take half a second, four at a time; takes minutes."""
    return BurstOptions(
        rate=3.0,
        burst=500,
        engine={"model": "fake", "startup_s": 60, "drain_s": 60},
        pipeline={"sampling": {"max_tokens": 16}},
        scaling={
            "slo_s": 8.0,
            "boot_s": 5.0,
            "every_s": 1.0,
            # Approximate speed of this many slots.
            "answer_tokens_per_s": 64.0,
            "prompt_tokens_per_s": 300.0,
            "requests_per_replica": SCRIPTED_SLOTS,
        },
        longest_s=600.0,
    )


def real_burst(settings: Settings) -> BurstOptions:
    """vLLM with the packaged model, one thread each; takes minutes."""
    python = settings.engine_env / "bin" / "python"
    model = settings.models / DEFAULT_MODEL
    for needed in (python, model):
        if not needed.exists():
            raise SetupError(f"{needed} is missing; run `forebay setup --engine`, or use --quick")
    arguments = (
        # Like a local engine: bfloat16 is slow if the processor only emulates it.
        f"--dtype={best_type(settings).name}",
        "--max-model-len=2048",
        "--max-num-seqs=64",
        f"--kv-cache-memory-bytes={1 << 29}",
        "--block-size=32",
        "--enforce-eager",
    )
    return BurstOptions(
        rate=0.5,
        burst=150,
        engine={
            "model": str(model),
            "args": arguments,
            "env": {**compute_environment(python, 1), "TORCH_COMPILE_DISABLE": "1"},
            "egress": False,
            "startup_s": 600,
            "drain_s": 120,
        },
        pipeline={
            "engine": {"model": DEFAULT_MODEL},
            "sampling": {"max_tokens": REAL_ANSWER_TOKENS, "extra": {"ignore_eos": True}},
        },
        scaling={
            "slo_s": 60.0,
            "boot_s": 30.0,
            "every_s": 2.0,
            # Approximate speed of one core; corrected by observations.
            "answer_tokens_per_s": 150.0,
            "prompt_tokens_per_s": 1500.0,
            "requests_per_replica": 64,
        },
        quiet_s=20.0,
    )


def images(folder: Path, settings: Settings, *, real: bool) -> Mapping[str, Image]:
    """Replacements for the container images; writes the engine's programs into `folder`."""
    programs = folder / "programs"
    programs.mkdir()
    python = shlex.quote(sys.executable)
    _program(programs / "python3", f'exec {python} "$@"')
    if real:
        # Not the `vllm` of that environment: it requires a package of that name, but the one for processors
        # has another name.
        own = shlex.quote(str(settings.engine_env / "bin" / "python"))
        server = f"{own} -m vllm.entrypoints.openai.api_server"
        _program(
            programs / "vllm",
            f'shift; model=$1; shift\nexec env -u PYTHONPATH {server} --model "$model" "$@"',
        )
    else:
        _program(
            programs / "vllm",
            "for word; do case $word in\n"
            "--served-model-name=*) name=${word#*=} ;;\n"
            "--port=*) port=${word#*=} ;;\n"
            "esac; done\n"
            f"exec {python} -m forebay.testing.replica --host 0.0.0.0 --port $port --model $name "
            f"--delay 1:{SCRIPTED_ANSWER_S} --slots {SCRIPTED_SLOTS}",
        )
    return {PIPELINE_IMAGE: FOREBAY, CONTROLLER_IMAGE: FOREBAY, ENGINE_IMAGE: Image(programs=programs)}


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
