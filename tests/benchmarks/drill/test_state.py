"""Checkpoints are counted by their numbers, in a folder and in an object store."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from benchmarks.drill.state import State

from forebay.clients.s3.client import S3Client
from forebay.clients.s3.lease import Lock, encode_lock
from forebay.clients.s3.location import S3Path
from forebay.errors import SettingError


def complete(root: Path, job: str, number: int) -> Path:
    path = root / "drill" / "checkpoints" / job / f"chk-{number}" / "_metadata"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    return path


def test_checkpoints_that_are_gone_count_too(tmp_path: Path) -> None:
    state = State(tmp_path / "state", 1)
    assert state.completed() == 0
    complete(tmp_path / "state", "job-1", 3).unlink()
    complete(tmp_path / "state", "job-1", 4).rename(tmp_path / "gone")
    complete(tmp_path / "state", "job-1", 5)
    assert state.completed() == 1
    complete(tmp_path / "state", "job-1", 8)
    complete(tmp_path / "state", "job-2", 9)
    assert state.completed() == 4 + 1


def test_a_copy_holds_the_same_and_counts_on(tmp_path: Path) -> None:
    state = State(tmp_path / "state", 1)
    complete(tmp_path / "state", "job-1", 3)
    assert state.completed() == 1
    state.move()
    assert state.home == tmp_path / "state-1" / "drill" / "checkpoints"
    assert not (tmp_path / "state").exists()
    complete(tmp_path / "state-1", "job-1", 4)
    assert state.completed() == 2


def test_an_object_store_has_checkpoints_and_a_holder(store: S3Path) -> None:
    client, state = S3Client(store.bucket), State(store, 1)
    home = state.home
    assert isinstance(home, S3Path)
    assert state.completed() == 0
    assert state.holder() is None
    for number, content in ((1, b"x"), (2, b"x"), (3, b"")):
        client.put((home / "job-1" / f"chk-{number}" / "_metadata").key, content, replacing=None)
    assert state.completed() == 2, "an empty object only occupies its name"
    state.hide_processes()
    client.put((home / "run.json").key, b'{"job": "job-1", "jvm": [7, 1.5]}', replacing=None)
    state.hide_processes()
    found = client.get((home / "run.json").key)
    assert found is not None
    assert orjson.loads(found.content) == {"job": "job-1", "jvm": None}
    lock = Lock("drill")
    client.put((home / "lock").key, encode_lock(lock), replacing=None)
    assert state.holder() == lock.holder
    with pytest.raises(SettingError, match="only a folder"):
        state.move()
