"""The wheel contains what the commands need without a source tree, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
NOT_PART = ("__pycache__", ".pyc")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built from a copy: building leaves folders next to the sources."""
    copy, made = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*command, "--wheel-dir", str(made), str(copy)], check=True, timeout=300)
    (file,) = made.glob("forebay-*.whl")
    with zipfile.ZipFile(file) as archive:
        yield archive


def metadata(wheel: zipfile.ZipFile) -> list[Requirement]:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    found = Parser().parsestr(wheel.read(name).decode())
    return [Requirement(line) for line in found.get_all("Requires-Dist", [])]


@pytest.mark.heavy
def test_every_file_of_the_package_is_in_it(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    there = {
        path.relative_to(source).as_posix()
        for path in (source / "forebay").rglob("*")
        if path.is_file() and not path.as_posix().endswith(NOT_PART) and "__pycache__" not in path.parts
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == there
    assert {
        "forebay/py.typed",
        "forebay/pages/templates/base.html.j2",
        "forebay/pipeline/flink_options.json",
        "forebay/engine/launch/locks/engine.txt",
        "forebay/planning/model_defaults.json",
    } <= packed


def test_command_is_installed(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert b"forebay = forebay.cli:main" in wheel.read(name)


def test_versions_are_ranges(wheel: zipfile.ZipFile) -> None:
    """Exact versions would conflict with other packages."""
    exact = [
        requirement.name
        for requirement in metadata(wheel)
        if any(each.operator in ("==", "===") for each in requirement.specifier)
    ]
    assert exact == []


def test_extras_named_in_messages_exist(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    extras = set(Parser().parsestr(wheel.read(name).decode()).get_all("Provides-Extra", []))
    assert {"gateway", "otel", "registry"} <= extras
