"""A Kubernetes control plane on loopback, with kubectl."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from forebay.errors import LaunchError
from forebay.testing import wait_until

VARIABLE = "FOREBAY_KUBERNETES_HOME"
NEAR = Path(__file__).parents[3] / "shared" / "k8s"
MISSING = f"no Kubernetes control plane: {VARIABLE} is not set and ../shared/k8s is missing"


def kubernetes_home() -> Path | None:
    """Folder with the control plane's programs and the operators' resource definitions."""
    named = os.environ.get(VARIABLE)
    home = Path(named) if named else NEAR
    return home if (home / "kube").is_file() else None


class ControlPlane:
    def __init__(self, home: Path, folder: Path) -> None:
        self._program = [sys.executable, str(home / "kube")]
        self._folder = folder
        self.kubeconfig = folder / "kubeconfig"

    def run(self, verb: str, *words: str) -> str:
        """Run one of its commands; blocks and returns the output. Raises `LaunchError`."""
        command = [*self._program, verb, str(self._folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise LaunchError(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def kubectl(self, *words: str) -> str:
        """Run kubectl as administrator."""
        return self.run("ctl", *words)

    def create(self, name: str, body: object) -> None:
        path = self._folder / f"{name}.json"
        path.write_bytes(orjson.dumps(body))
        self.kubectl("create", "-f", str(path))


def _all_established(plane: ControlPlane) -> bool:
    found = orjson.loads(plane.kubectl("get", "crd", "-o", "json"))["items"]
    conditions = [item.get("status", {}).get("conditions") or () for item in found]
    return all(any(c["type"] == "Established" and c["status"] == "True" for c in each) for each in conditions)


@contextmanager
def control_plane_in(folder: Path, home: Path, *, fake_pods: bool = True) -> Iterator[ControlPlane]:
    """A control plane during the block, with the resources of Flink's operator, KEDA and others.

    `fake_pods`: every pod on a node counts as running and ready.
    """
    plane = ControlPlane(home, folder)
    plane.run("up", *(() if fake_pods else ("--no-fake-pods",)))
    try:
        for definition in sorted((home / "crds").iterdir()):
            plane.kubectl("apply", "--server-side", "-f", str(definition))
        wait_until(lambda: _all_established(plane))
        yield plane
    finally:
        plane.run("down")
