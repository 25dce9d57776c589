"""Linux namespaces for a process: its own network, and an end for all its children."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

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
