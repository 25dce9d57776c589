"""Acts as another, unprivileged user of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

ATTACKER = 12345
BASH = shutil.which("bash", path="/bin:/usr/bin")
WHY_NOT = "only root can act as another user, with bash"

needs_other_user = pytest.mark.skipif(os.getuid() != 0 or BASH is None, reason=WHY_NOT)


def as_attacker(script: str, *arguments: object) -> str:
    """What `script` prints as the other user, whose commands may fail."""
    assert BASH is not None
    done = subprocess.run(
        [BASH, "-c", script, "attack", *map(str, arguments)],
        user=ATTACKER,
        group=ATTACKER,
        extra_groups=[],
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout
