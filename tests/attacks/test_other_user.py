"""Another user of this machine takes files, and plants checkpoints, and links in the folder of results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from forebay.errors import SettingError
from forebay.pipeline.load import parse_spec
from forebay.pipeline.plan import Plan
from forebay.pipeline.preflight import check_paths
from forebay.pipeline.run import run_pipeline
from forebay.pipeline.state_store import LocalStore
from forebay.settings import Settings
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

from .other_user import ATTACKER, as_attacker, needs_other_user

JOB = "0123456789abcdef0123456789abcdef"

pytestmark = needs_other_user


TAKE = """
find "$1" -mindepth 1 | sort | while read -r path; do
  test -f "$path" && cat "$path" >/dev/null && echo "reads $path"
  test -d "$path" && ls "$path" >/dev/null && echo "lists $path"
  test -f "$path" && printf '' >>"$path" && echo "writes $path"
  test -d "$path" && touch "$path/planted" && echo "plants in $path"
  mv "$path" "$path.taken" && echo "moves $path"
done
"""
"""Tries to read, change and replace everything below a folder."""


def give(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, ATTACKER, -1)
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like `/tmp`."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder like `/tmp` that everybody reaches; pytest's are private."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


def plan(base: Path, from_checkpoint: Path | None = None, **document: Any) -> Plan:
    usual = {
        "name": "p",
        "source": {"type": "generator"},
        "prompt": "{{ text }}",
        "sink": {"type": "jsonl", "path": "out"},
    }
    spec = parse_spec({**usual, **document}, base=base)
    return Plan(spec, Settings(base, base), in_process=True, from_checkpoint=from_checkpoint)


def test_attack_works_on_unprotected_files(public: Path) -> None:
    assert as_attacker("id -u; id -G") == f"{ATTACKER}\n{ATTACKER}\n"
    for name, mode in (("mine", 0o600), ("ours", 0o666)):
        (public / name).write_text("secret")
        (public / name).chmod(mode)
    assert as_attacker(TAKE, public) == f"reads {public}/ours\nwrites {public}/ours\n"


@pytest.mark.flink
@pytest.mark.slow
def test_files_and_processes_of_a_run_are_protected(pipelines: Any, public: Path) -> None:
    """Also with everything in a folder like `/tmp`. Ports: see `test_ports.py`."""
    before = os.umask(0o077)
    try:
        run = type(pipelines)(public, pipelines._connector)
        run.write(*({"id": str(n), "text": f"t{n}"} for n in range(40)))
        taken: list[str] = []

        def attack(now: Any) -> None:
            if now.state == "RUNNING" and run.lines() and not taken:
                processes = psutil.Process().children(recursive=True)
                secrets = [
                    f"/proc/{process.pid}/{name}" for process in processes for name in ("environ", "maps")
                ]
                taken.append(as_attacker(TAKE, public))
                taken.append(as_attacker('for path; do cat "$path"; done', *secrets))

        with ReplicaThread(ReplicaScript(delay=Fixed(0.2))) as replica:
            last = run.run(run.spec(capacity=4), replica.url, watch=attack, in_process=False)
        assert (last.state, taken) == ("FINISHED", ["", ""])
        ids = [line["id"] for line in run.lines()]
        assert len(ids) == len(set(ids)) == 40
    finally:
        os.umask(before)


def test_state_below_another_users_folder_is_rejected(shared: Path) -> None:
    store = LocalStore(give(shared / ".forebay") / "checkpoints" / "p")
    store.home.mkdir(parents=True)
    with pytest.raises(SettingError, match=f"belongs to user {ATTACKER}, who could replace"), store.lock("p"):
        pass


def test_planted_checkpoint_is_rejected(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "state")
    planted = store.home / JOB / "chk-999999"
    planted.mkdir(parents=True)
    (planted / "_metadata").write_bytes(b"x")
    assert [checkpoint.number for checkpoint in store.checkpoints(JOB)] == [999999]
    os.chown(planted, ATTACKER, -1)
    with pytest.raises(SettingError, match=f"chk-999999 belongs to user {ATTACKER}"):
        store.checkpoints(JOB)
    os.chown(planted, 0, -1)
    os.chown(planted.parent, ATTACKER, -1)
    with pytest.raises(SettingError, match=f"{JOB} belongs to user {ATTACKER}"):
        store.checkpoints(JOB)


@pytest.mark.parametrize("key", ["sink.path", "dead_letters.path", "checkpoint.dir"])
def test_output_in_a_shared_folder_is_rejected(tmp_path: Path, key: str) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    table, name = key.split(".")
    document = {table: {"type": "jsonl", name: str(folder)} if name == "path" else {name: str(folder)}}
    made = plan(tmp_path, **document)
    check_paths(made)
    for mode in (0o777, 0o1777):
        folder.chmod(mode)
        with pytest.raises(SettingError, match=rf"{key}: others may write to .*open"):
            check_paths(made)


def test_output_in_another_users_folder_is_rejected(shared: Path) -> None:
    give(shared / "theirs")
    with pytest.raises(SettingError, match=rf"sink.path: .*theirs belongs to user {ATTACKER}"):
        check_paths(plan(shared, sink={"type": "jsonl", "path": "theirs/out"}))


def test_named_checkpoint_of_another_user_is_rejected(tmp_path: Path) -> None:
    chosen = give(tmp_path / "chk-7")
    with pytest.raises(SettingError, match=f"chk-7 belongs to user {ATTACKER}"):
        run_pipeline(plan(tmp_path, chosen), nullcontext(["http://127.0.0.1:1"]))
