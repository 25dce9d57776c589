"""Defines a peer, and the order that its program gets."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from forebay.engine.launch.progress import Progress, run_logged
from forebay.errors import SetupError
from forebay.files import locked, read_stamp, write_stamp
from forebay.flink.java import java_home
from forebay.settings import Settings

PROGRAMS = Path(__file__).with_name("programs")
REQUIREMENTS = Path(__file__).with_name("requirements")
ID = re.compile(rb"\b(event|warm)-(\d+)\b")
ID_IN_PROMPT = r"\b(?:event|warm)-\d+\b"

SYSTEM = "You are a helpful assistant."
"""The default of ML_PREDICT's provider."""

Checkpoints = Literal["flink", "forebay"]
"""Whose REST service reports them: plain Flink's, or that of Forebay's Flink, which requires a key."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to do the work.

    `program`: a file in `programs`; `requirements`: one in `requirements` for its environment, None for
    Forebay's; `packages`: those whose versions are recorded. `docs`: the page by which it was set up.
    `options` are passed to the program. `jars` are looked for in the folder of Flink's connectors. `limits`:
    what the system cannot do, by part of the measurement.
    """

    name: str
    title: str
    program: str
    docs: str
    packages: tuple[str, ...] = ()
    requirements: str | None = None
    checkpoints: Checkpoints | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    jars: tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Order:
    bootstrap: str
    events: str
    results: str
    letters: str
    engine: str
    model: str
    system: str
    max_tokens: int
    capacity: int
    state: str
    rest_port: int
    restore_from: str | None = None
    jars: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.write_bytes(orjson.dumps(asdict(self)))


def event_of(id: str) -> dict[str, str]:
    return {
        "event_id": id,
        "prompt": f"Post {id} is about rain in the harbour. Say in a word what it is about.",
    }


@dataclass(frozen=True, slots=True)
class Named:
    """A record of the results: its event, and whether it has an answer."""

    kind: str
    index: int
    answered: bool


def read_result(value: bytes) -> Named | None:
    found = ID.search(value)
    if found is None:
        return None
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(document, dict):
        return None
    return Named(found[1].decode(), int(found[2]), document.get("answer") is not None)


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
    """The Python for the peer's program; creates its environment unless it exists with these
    versions."""
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
    found = settings.child_environment()
    if peer.requirements is not None:
        found.pop("PYTHONPATH", None)
    # Telemetry to the vendors.
    private = {"RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
    return {**found, **private, "JAVA_HOME": str(java_home())}


def versions(python: Path, packages: Sequence[str]) -> dict[str, str]:
    done = subprocess.run(
        [python, "-c", VERSIONS, *packages], capture_output=True, check=False, env=dict(os.environ)
    )
    if done.returncode:
        raise SetupError(f"{python} does not run: {done.stderr.decode(errors='replace')[-300:]}")
    found: dict[str, str] = orjson.loads(done.stdout)
    return found
