"""Learned scaling state is kept in the operator's state, and found after a restore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from forebay.fleet.autoscale.learned import ScalingMemory
from forebay.flink.learned import SCALING_NAME, LearnedState, ScalingStateSlot
from forebay.stateful.machine import DictStore


class Number:
    def __init__(self, value: int) -> None:
        self.value = value

    def remembers(self) -> Mapping[str, object]:
        return {"value": self.value}

    def recall(self, memory: Mapping[str, object]) -> None: ...


def document(at_ms: int) -> bytes:
    data = ScalingMemory({"model": "m"}, {"number": Number(at_ms)}).save(at_ms)
    assert data is not None
    return data


class Shards:
    def __init__(self, held: Mapping[int, bytes]) -> None:
        self.by_key = {key: DictStore({SCALING_NAME: data}) for key, data in held.items()}
        self.key = -1

    def keys(self) -> Iterator[int]:
        for key in [key for key, store in self.by_key.items() if store]:
            self.key = key
            yield key

    def get(self, key: str) -> bytes | None:
        return self.by_key[self.key].get(key)

    def put(self, key: str, value: bytes) -> None:
        self.by_key.setdefault(self.key, DictStore()).put(key, value)

    def remove(self, key: str) -> None:
        self.by_key[self.key].remove(key)

    def items(self) -> Any:
        raise AssertionError("nobody asks for all")


def written(state: LearnedState, shards: Shards, *taken: int) -> dict[int, bytes | None]:
    """The state by key after a wake with these shards."""
    for shards.key in state.place(taken):
        state.write()
    return {key: store.get(SCALING_NAME) for key, store in shards.by_key.items() if store}


def test_newest_learned_state_wins_and_stays_in_its_shard() -> None:
    """As after a merge of subtasks."""
    shards, mail = Shards({4: document(1), 7: document(3), 9: document(2)}), ScalingStateSlot()
    state = LearnedState(shards, mail)
    state.restore(shards.keys)
    assert (mail.take(), mail.take()) == (document(3), None)
    assert written(state, shards, 4, 7, 9) == {7: document(3)}
    mail.newest = document(5)
    assert written(state, shards, 4, 7, 9) == {7: document(5)}
    # What is written is not written again.
    assert list(state.place((4, 7, 9))) == []


def test_first_shard_keeps_new_learned_state() -> None:
    shards, mail = Shards({}), ScalingStateSlot()
    state = LearnedState(shards, mail)
    state.restore(shards.keys)
    assert mail.take() is None
    mail.newest = document(1)
    assert written(state, shards) == {}
    assert written(state, shards, 5, 6) == {5: document(1)}


@pytest.mark.parametrize("other", [{}, {2: document(1)}])
def test_unreadable_learned_state_loses_to_a_readable_one(other: Mapping[int, bytes]) -> None:
    shards, mail = Shards({1: b"\x80no memory", **other}), ScalingStateSlot()
    LearnedState(shards, mail).restore(shards.keys)
    # Alone, it is passed on: the reader reports what is wrong.
    assert mail.take() == (other.get(2) or b"\x80no memory")
    assert len(list(shards.keys())) == 1
