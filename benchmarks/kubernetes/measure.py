"""Starts the whole measurement in its own network."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from benchmarks.kubernetes.plane import MISSING as NO_PLANE
from benchmarks.kubernetes.plane import kubernetes_home
from forebay.errors import LaunchError, SetupError
from forebay.processes import parent_death_signal

ROOT = Path(__file__).parents[2]


def measure_kubernetes(
    folder: Path,
    *,
    real: bool,
    burst: bool = True,
    restarts: int = 0,
    rate_per_s: float | None = None,
    slo_s: float | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> dict[str, Any]:
    """The document; blocks for minutes. `folder` is empty, and keeps the logs of all programs.

    `rate_per_s`: events of the stream without its burst; `slo_s`: maximum wait of each; None: as suits the
    replicas. `say` receives progress. Raises `SetupError` if this machine lacks something, and `LaunchError`
    if a part does not finish.
    """
    way = isolated()
    if way is None:
        raise SetupError(MISSING)
    if kubernetes_home() is None:
        raise SetupError(NO_PLANE)
    asked = {"real": real, "burst": burst, "restarts": restarts, "rate_per_s": rate_per_s, "slo_s": slo_s}
    (folder / "options.json").write_bytes(orjson.dumps(asked))
    command = [*way, sys.executable, "-m", "benchmarks.kubernetes.worker", str(folder)]
    errors = folder / "errors.txt"
    with errors.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            preexec_fn=parent_death_signal(signal.SIGKILL),  # noqa: PLW1509
        )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            say(line.strip())
        status = process.wait()
    finally:
        # All its processes end with it.
        process.kill()
        process.wait()
    if status:
        said = errors.read_text(errors="replace").strip()
        raise LaunchError(f"the measurement ended with status {status}: {said[-2000:]}")
    found: dict[str, Any] = orjson.loads((folder / "report.json").read_bytes())
    return found


COMMON = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
WAYS = ((*COMMON, "--map-root-user"), COMMON)
"""As any user if the machine allows user namespaces, else as root."""


@cache
def isolated() -> tuple[str, ...] | None:
    """Prefix for a command that gives it its own network and process numbers; None if this machine does not
    allow it.

    When that command is killed, all its processes are.
    """
    if any(shutil.which(name) is None for name in ("unshare", "nsenter", "ip")):
        return None
    probe = ("sh", "-c", "ip link add probe type veth peer name eborp")
    for way in WAYS:
        if subprocess.run([*way, *probe], capture_output=True, check=False).returncode == 0:
            return way
    return None


MISSING = (
    "this machine allows no network namespaces (unshare --net --map-root-user), or has no iproute2; "
    "pods cannot have addresses"
)
