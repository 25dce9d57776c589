from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.engine.launch import local
from forebay.engine.launch.local import machine_registry
from forebay.engine.launch.registry import LocalReplica, ReplicaRegistry
from forebay.processes import birth_s
from forebay.settings import Settings


def entry(replica_id: str, *, pid: int = 2**30, kept: bool = True) -> LocalReplica:
    return LocalReplica(
        id=replica_id, url="http://127.0.0.1:8100", port=8100, model="m", log=Path("log"), cores=(0, 1),
        pid=pid, born_s=birth_s(pid) or 0.0, owner_pid=1, kept=kept, members=((5, 1.5),),
    )  # fmt: skip


def test_each_container_has_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another container's replicas seem dead here, and would be dropped."""
    settings = Settings(home=tmp_path, python=Path())
    (tmp_path / "run").mkdir()
    with machine_registry(settings).changing() as registered:
        registered["owned"] = entry("owned", pid=os.getpid(), kept=False)
    with monkeypatch.context() as patch:
        patch.setattr(local, "pid_space", lambda: "elsewhere")
        with machine_registry(settings).changing() as registered:
            assert registered == {}
    assert [replica.id for replica in machine_registry(settings).read()] == ["owned"]


def test_written_registry_is_read_back(tmp_path: Path) -> None:
    registry = ReplicaRegistry(tmp_path / "replicas.json")
    with registry.changing() as registered:
        registered["a"] = entry("a")
    assert registry.read() == [entry("a")]
    assert registry.kept("a")
    assert not registry.kept("b")


def test_failed_change_changes_nothing(tmp_path: Path) -> None:
    registry = ReplicaRegistry(tmp_path / "replicas.json")

    def change() -> None:
        with registry.changing() as registered:
            registered["a"] = entry("a")
            del registered["b"]

    with pytest.raises(KeyError):
        change()
    assert registry.read() == []


def test_replicas_that_died_with_their_owner_are_dropped_except_kept_ones(tmp_path: Path) -> None:
    registry = ReplicaRegistry(tmp_path / "replicas.json")
    with registry.changing() as registered:
        registered.update(
            dead=entry("dead", kept=False),
            lost=entry("lost", kept=True),
            owned=entry("owned", pid=os.getpid(), kept=False),
        )
    with registry.changing() as registered:
        assert set(registered) == {"lost", "owned"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"version": 2, "replicas": []}',
        '{"version": 1, "replicas": 3}',
        '{"version": 1, "replicas": [{"id": 1}, null]}',
    ],
)
def test_invalid_file_reads_as_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / "replicas.json").write_text(content)
    assert ReplicaRegistry(tmp_path / "replicas.json").read() == []
