"""Replicas that a run owns, without processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.engine.launch import Replica
from forebay.errors import LaunchError


class FakeReplica(Replica):
    """One whose death is a field."""

    dead: bool = False

    @property
    def alive(self) -> bool:
        return not self.dead


class FakeOwned(tuple[str, ...]):
    """The URLs of replicas that die when told to; `broken` ones cannot be started again."""

    replicas: list[Replica]
    restarted: list[int]
    broken: bool

    def __new__(cls, count: int = 1) -> FakeOwned:
        owned = super().__new__(cls, (f"http://r:{i}" for i in range(count)))
        owned.replicas = [cls._new(i) for i in range(count)]
        owned.restarted = []
        owned.broken = False
        return owned

    def die(self, index: int = 0) -> None:
        self.replicas[index] = self.replicas[index].model_copy(update={"dead": True})

    def restart(self, index: int) -> None:
        if self.broken:
            raise LaunchError("no memory")
        self.restarted.append(index)
        self.replicas[index] = self._new(index)

    @staticmethod
    def _new(index: int) -> FakeReplica:
        return FakeReplica(
            id=str(index), url=f"http://r:{index}", port=1, model="m", log=Path("the.log"), pid=1, born_s=0.0,
            owner_pid=1,
        )  # fmt: skip


@pytest.fixture
def make_owned() -> type[FakeOwned]:
    return FakeOwned
