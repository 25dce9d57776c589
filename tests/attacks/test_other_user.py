"""Another user of this machine plants checkpoints, and links where results are written."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import SettingError
from forebay.pipeline.load import parse_spec
from forebay.pipeline.plan import Plan
from forebay.pipeline.preflight import check_paths
from forebay.pipeline.run import run_pipeline
from forebay.pipeline.state_store import LocalStore
from forebay.settings import Settings

ATTACKER = 12345
JOB = "0123456789abcdef0123456789abcdef"

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


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


def plan(base: Path, from_checkpoint: Path | None = None, **document: Any) -> Plan:
    usual = {
        "name": "p",
        "source": {"type": "generator"},
        "prompt": "{{ text }}",
        "sink": {"type": "jsonl", "path": "out"},
    }
    spec = parse_spec({**usual, **document}, base=base)
    return Plan(spec, Settings(base, base), in_process=True, from_checkpoint=from_checkpoint)


def test_state_below_a_folder_of_another_user_is_refused(shared: Path) -> None:
    store = LocalStore(give(shared / ".forebay") / "checkpoints" / "p")
    store.home.mkdir(parents=True)
    with (
        pytest.raises(SettingError, match=f"belongs to user {ATTACKER}, who could replace"),
        store.lock("p"),
    ):
        pass


def test_planted_checkpoint_is_refused(tmp_path: Path) -> None:
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
def test_output_where_others_may_write_is_refused(tmp_path: Path, key: str) -> None:
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


def test_output_in_a_folder_of_another_user_is_refused(shared: Path) -> None:
    give(shared / "theirs")
    with pytest.raises(SettingError, match=rf"sink.path: .*theirs belongs to user {ATTACKER}"):
        check_paths(plan(shared, sink={"type": "jsonl", "path": "theirs/out"}))


def test_chosen_checkpoint_of_another_user_is_refused(tmp_path: Path) -> None:
    chosen = give(tmp_path / "chk-7")
    with pytest.raises(SettingError, match=f"chk-7 belongs to user {ATTACKER}"):
        run_pipeline(plan(tmp_path, chosen), nullcontext(["http://127.0.0.1:1"]))
