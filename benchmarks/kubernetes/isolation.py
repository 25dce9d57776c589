"""Namespaces of this machine for a process: a network of its own, and an end for all that it starts."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

COMMON = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
WAYS = ((*COMMON, "--map-root-user"), COMMON)
"""As anybody where the machine lets users have namespaces, and else as root."""


@cache
def isolated() -> tuple[str, ...] | None:
    """What a command begins with so that it runs with a network and process numbers of its own; None where
    this machine does not allow it. When that command is killed, all that it has started is."""
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
