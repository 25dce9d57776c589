"""The record of a pipeline's runs: atomic, and never guessed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import PipelineFailed, SettingError
from forebay.flink.checkpoints import LOCK
from forebay.pipeline.state_store import (
    Completed,
    LocalStore,
    RunRecordBroken,
    RunState,
    read_state,
    write_state,
)

FULL = RunState(
    finished=True,
    traits={"source.type": "kafka", "shards": 8},
    job="a" * 32,
    restored=f"{'b' * 32}/chk-41",
    completed=Completed(number=42, triggered_ms=1_700_000_000_000, files=3, bytes=4711),
    parallelism=2,
    jvm=(2**22 + 1, 3.5),
    cluster="flink:8081",
    ends=(("t", 0, 7),),
    kafka="K",
)


def test_written_record_is_read(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    for state in (FULL, RunState()):
        write_state(tmp_path, state)
        assert read_state(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"[1]", "it is not a JSON object"),
        (b"\xff\xfe", "cannot be read"),
        (b'{"format": 4, "job": "../../x"}', "job: String should match pattern"),
        (b'{"format": 4, "finished": "perhaps"}', "finished: Input should be a valid boolean"),
        (b'{"format": 4, "later": 1}', "later: Extra inputs are not permitted"),
        (b'{"format": "two"}', "format two; this Forebay reads format 4"),
        (b'{"format": 1}', "run.json: format 1; this Forebay reads format 4: continue with the version"),
        (b"{}", "run.json: format None; this Forebay reads format 4"),
        (b"[" * 100_000, "cannot be read"),
    ],
)
def test_broken_record_is_rejected(tmp_path: Path, data: bytes, said: str) -> None:
    """It must not count as a pipeline that never ran, whose results would all be repeated."""
    (tmp_path / "run.json").write_bytes(data)
    with pytest.raises(RunRecordBroken, match=said):
        read_state(tmp_path)


def test_record_without_read_permission_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with pytest.raises(RunRecordBroken, match=r"cannot be read \(Is a directory\)"):
        read_state(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(RunState.model_fields)), json_values) | json_values)
def test_reader_survives_any_document(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "run.json").write_text(json.dumps(document))
    try:
        state = read_state(folder)
    except RunRecordBroken:
        return
    assert state is not None
    assert state.format == 1


def test_failed_write_keeps_the_previous_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    write_state(tmp_path, FULL)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_state(tmp_path, RunState())
    assert read_state(tmp_path) == FULL
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_record_and_rename_are_synced_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        sync(descriptor)

    def renamed(before: Path, after: Path) -> None:
        done.append(f"rename {before.name}")
        rename(before, after)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_state(tmp_path, FULL)
    assert done == ["sync run.json.new", "rename run.json.new", f"sync {tmp_path.name}"]


def test_running_pipeline_is_detected_by_its_lock(tmp_path: Path) -> None:
    home = tmp_path / "state"
    store = LocalStore(home)
    assert not store.running()
    home.mkdir(mode=0o700)
    assert not store.running()
    assert not list(home.iterdir())
    with store.lock("p"):
        assert LocalStore(home).running()
    assert not store.running()


def test_two_processes_looking_for_a_run_find_none(tmp_path: Path) -> None:
    with (tmp_path / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not LocalStore(tmp_path).running()


def test_run_starts_while_another_process_looks_for_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with (tmp_path / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with LocalStore(tmp_path, sleep=lambda _: fcntl.flock(file, fcntl.LOCK_UN)).lock("p"):
            assert LocalStore(tmp_path).running()


def test_second_run_is_rejected_after_a_second(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    waited_s: list[float] = []
    second = LocalStore(tmp_path, sleep=waited_s.append).lock("p")
    with LocalStore(tmp_path).lock("p"), pytest.raises(SettingError, match="'p' is running already"), second:
        pass
    assert sum(waited_s) == pytest.approx(1.0)


def test_run_whose_state_was_removed_is_ended(tmp_path: Path) -> None:
    """A second run could lock the new folder, and write all results again."""
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    store = LocalStore(home)
    store.check_held()
    with store.lock("p"):
        store.check_held()
        shutil.rmtree(home)
        with pytest.raises(PipelineFailed, match=f"{home}/lock was removed or replaced during the run"):
            store.check_held()
        home.mkdir(mode=0o700)
        other = LocalStore(home)
        with other.lock("p"):
            other.check_held()
            with pytest.raises(PipelineFailed, match=f"{home}/lock was removed or replaced during the run"):
                store.check_held()
        shutil.rmtree(home)
        tmp_path.joinpath("state").symlink_to("state")
        store.check_held()


def test_unreadable_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / LOCK).symlink_to(LOCK)
    with pytest.raises(PipelineFailed, match=r"/lock cannot be read: Too many levels"):
        LocalStore(tmp_path).running()
