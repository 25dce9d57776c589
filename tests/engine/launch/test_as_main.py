from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from forebay.engine.launch.spec import AS_MAIN
from forebay.testing.waiting import wait_until

SERVER = """
import multiprocessing
import os
import sys
import time

if __name__ == "__main__":
    forked = os.fork()
    if not forked:
        time.sleep(600)
    spawned = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    spawned.start()
    print(*sys.argv[1:], forked, spawned.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux's kernel")
def test_what_a_server_has_started_ends_with_it_however_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "a_server.py").write_text(SERVER)
    command = [sys.executable, str(AS_MAIN), "a_server", "--seed", "7"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PYTHONPATH": str(tmp_path)}) as server:
        try:
            assert server.stdout is not None
            *options, forked, spawned = server.stdout.readline().split()
            children = [psutil.Process(int(number)) for number in (forked, spawned)]
        finally:
            server.kill()
    assert options == [b"--seed", b"7"]
    wait_until(lambda: not any(map(runs, children)), 10)


def runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
