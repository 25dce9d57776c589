from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path
from types import SimpleNamespace

import pytest

from forebay import processes
from forebay.processes import (
    birth_s,
    is_same,
    kill,
    module_command,
    own_name,
    pid_space,
    session_members,
)
from forebay.testing.waiting import wait_until


@pytest.mark.heavy
def test_a_planted_module_is_not_imported(tmp_path: Path) -> None:
    for name in ("orjson", "psutil", "runpy", "json", "forebay"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')")
    command = module_command("forebay.engine.launch.supervisor", "{}")
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    # The module runs, and finds its argument where `python -m` puts it.
    assert "SupervisorArgs.__init__() missing" in ended.stderr


HOLDER = """
from multiprocessing import shared_memory
held = shared_memory.SharedMemory(create=True, size=64)
print(held.name, flush=True)
input()
"""


def test_a_process_is_known_by_its_birth() -> None:
    born_s = birth_s(os.getpid())
    assert born_s is not None
    assert is_same(os.getpid(), born_s)
    assert not is_same(os.getpid(), born_s - 10)
    assert birth_s(2**30) is None


def test_files_of_a_process_are_named_after_it_alone() -> None:
    assert own_name() == own_name()
    assert own_name().startswith(f"{os.getpid()}-")
    child = subprocess.run(
        [sys.executable, "-c", "from forebay.processes import own_name; print(own_name())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert own_name().partition("-")[2] != child.stdout.strip().partition("-")[2]


@pytest.mark.parametrize("other", ["boot", "namespace"])
def test_pids_of_another_boot_or_container_are_of_another_space(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = pid_space()
    if other == "boot":
        (tmp_path / "boot_id").write_text("another\n")
        monkeypatch.setattr(processes, "BOOT_ID", tmp_path / "boot_id")
    else:
        monkeypatch.setattr(os, "stat", lambda path: SimpleNamespace(st_ino=4711))
    assert pid_space.__wrapped__() != here
    monkeypatch.undo()
    assert pid_space.__wrapped__() == here


def test_killed_process_leaves_no_shared_memory() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    name = holder.stdout.readline().decode().strip()
    # Until it runs its own program, a child goes by its parent's name.
    wait_until(lambda: any("resource_tracker" in " ".join(p.cmdline()) for p in session_members(holder.pid)))
    members = session_members(holder.pid)
    assert len(members) == 2, "the holder and its resource tracker"
    assert kill(members) == set()
    holder.communicate()
    with pytest.raises(FileNotFoundError):
        shared_memory.SharedMemory(name)


def test_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert birth_s(child.pid) is None
    child.wait()
