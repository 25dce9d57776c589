"""Learned scaling state is kept in the operator's state, and found after a restore."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from forebay.fleet.autoscale.learned import ScalingMemory, saved_ms
from forebay.flink import infer as infer_module
from forebay.flink.learned import SCALING_NAME, LearnedState, ScalingStateSlot
from forebay.flink.metrics import InferenceCounters, ScalingGauges
from forebay.flink.request_pool import Handler
from forebay.records import KeyedEvent, Result, Usage
from forebay.stateful.machine import DictStore
from forebay.testing.waiting import wait_until


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


@dataclass(frozen=True)
class OpenLearning:
    """Opens a `Learning`, in place of what opens a handler for `call`. Picklable."""

    call: Any

    async def __call__(self, counts: InferenceCounters) -> Handler:
        counts.scaling = ScalingGauges()
        return Learning(counts.scaling, Path(self.call.engine.folder))


class Learning:
    """Answers at once, and learns the number of the last event. The file `found` lists what subtasks found
    after a restore.
    """

    def __init__(self, gauges: ScalingGauges, folder: Path) -> None:
        self._gauges = gauges
        self._folder = folder

    def accept(self, item: KeyedEvent, *, restored: bool) -> None: ...

    async def answer(self, item: KeyedEvent) -> Result:
        found = self._gauges.learned.take()
        if found is not None:
            with (self._folder / "found").open("ab") as file:
                file.write(found + b"\n")
        number = int(str(item.event.fields["n"]))
        self._gauges.learned.newest = document(number)
        self._gauges.notify()
        return Result(item.id, item.key, item.event.fields, "x", Usage(1, 1), 1, item.read_ms, 0.0, 0.0)

    async def close(self) -> None: ...


@pytest.mark.long
@pytest.mark.flink
def test_restored_job_finds_its_learned_state(
    make_runs: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First restores the state of a version without it; then one subtask's by two, and by one."""
    runs = make_runs(follow=True, capacity=4, keyed=True)

    def go_on(total: int, **settings: Any) -> list[int]:
        """Answer events up to `total`; return the numbers found on the way."""
        (runs.folder / "found").unlink(missing_ok=True)
        runs.feed({"n": n, "text": "x", "key": f"k{n}"} for n in range(total - 40, total))
        job = runs.start(**settings)
        wait_until(lambda: len(runs.results()) >= total)
        runs.await_checkpoint(job)
        runs.stop(job)
        found = runs.folder / "found"
        return [saved_ms(line) for line in found.read_bytes().splitlines()] if found.exists() else []

    go_on(40)
    monkeypatch.setattr(infer_module, "OpenRequestHandler", OpenLearning)
    assert go_on(80, restore=True) == []
    (first,) = go_on(120, restore=True, parallelism=2)
    assert 40 <= first < 80
    (second,) = go_on(160, restore=True)
    assert 80 <= second < 120
    assert sorted(result["fields"]["n"] for result in runs.results()) == list(range(160))
    assert orjson.loads(document(7))["at_ms"] == 7
