"""Shards are spread evenly over subtasks by Flink's rule of key groups; a checkpoint keeps their number."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import SettingError
from forebay.flink import shards
from forebay.flink.shards import (
    MAX_PARALLELISM,
    flink_keys,
    key_group,
    name_of,
    shard_of,
    shards_uid,
    subtask_of,
)
from forebay.testing.waiting import wait_until


@pytest.mark.parametrize("shards", [1, 2, 3, 8, 16, 64, 128])
def test_each_shard_has_its_own_key_and_key_group(shards: int) -> None:
    keys = flink_keys(shards)
    assert len(set(keys)) == len({key_group(key) for key in keys}) == shards


@pytest.mark.parametrize("parallelism", [1, 2, 4, 8])
def test_eight_shards_fall_evenly_on_subtasks(parallelism: int) -> None:
    owners = Counter(subtask_of(key, parallelism) for key in flink_keys(8))
    assert owners == dict.fromkeys(range(parallelism), 8 // parallelism)


@pytest.mark.parametrize("parallelism", [3, 5, 6, 7])
def test_shards_are_balanced_at_any_parallelism(parallelism: int) -> None:
    owners = Counter(subtask_of(key, parallelism) for key in flink_keys(8))
    assert len(owners) == parallelism
    assert max(owners.values()) - min(owners.values()) <= 1


def test_keys_never_change() -> None:
    # State of a checkpoint belongs to these numbers.
    assert flink_keys(8) == (250, 299, 13, 238, 22, 8, 113, 101)
    assert [shard_of(key, 8) for key in ("", "a", "user-1", "\ud800")] == [4, 7, 0, 0]


def test_keys_spread_over_shards() -> None:
    counts = Counter(shard_of(f"user-{i}", 8) for i in range(8000))
    assert all(800 < n < 1200 for n in counts.values())


@pytest.mark.flink
def test_key_groups_equal_flinks(flink_logs: Path) -> None:
    from pyflink.java_gateway import get_gateway

    from forebay.flink.jvm import start_jvm

    start_jvm(flink_logs, heap_mb=768)
    jvm = get_gateway().jvm
    ranges = jvm.org.apache.flink.runtime.state.KeyGroupRangeAssignment
    draw = random.Random(7)
    for key in (0, 1, *flink_keys(128), *(draw.randrange(1 << 20) for _ in range(300))):
        keyed = of_python_function(jvm, key)
        assert key_group(key) == ranges.assignToKeyGroup(keyed, MAX_PARALLELISM)
        for parallelism in (2, 3, 8):
            owner = ranges.assignKeyToParallelOperator(keyed, MAX_PARALLELISM, parallelism)
            assert subtask_of(key, parallelism) == owner


def of_python_function(jvm: Any, key: int) -> Any:
    """Flink's key for an element with this key from a Python function."""
    element = jvm.org.apache.flink.types.Row(2)
    element.setField(0, jvm.java.lang.Integer.valueOf(key))
    return jvm.KeyByKeySelector().getKey(element)


def holds(monkeypatch: pytest.MonkeyPatch, uids: tuple[str, ...] | None) -> None:
    """Let the restored checkpoint contain state of operators with these uids."""
    monkeypatch.setattr(shards, "restored_uids", lambda env: None if uids is None else frozenset(uids))


def test_checkpoint_keeps_its_number_of_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    holds(monkeypatch, None)
    assert shards_uid(None, "infer", 8, bound=True) == "infer: 8 shards"
    holds(monkeypatch, ("infer: 8 shards", "other: 16 shards"))
    assert shards_uid(None, "infer", 8, bound=True) == "infer: 8 shards"
    assert shards_uid(None, "infer", 32, bound=False) == "infer: 8 shards"
    assert shards_uid(None, "new", 4, bound=True) == "new: 4 shards"
    with pytest.raises(SettingError, match=r"shards: expected 8, as in the checkpoint .* found 32"):
        shards_uid(None, "infer", 32, bound=True)


def test_operator_name_is_in_its_uid() -> None:
    assert [name_of(uid) for uid in (None, "a", "a: 8 shards", "a: b: 12 shards", "a: 8 shards?")] == [
        None,
        "a",
        "a",
        "a: b",
        "a: 8 shards?",
    ]


Make = Callable[..., Any]


def events(start: int, stop: int, hold: str = "") -> list[dict[str, Any]]:
    held = f" ((hold:{hold}))" if hold else ""
    return [{"n": n, "text": f"event {n}{held}", "key": f"k{n % 7}"} for n in range(start, stop)]


def exact(runs: Any, total: int) -> bool:
    """Whether each event was answered once, and in order by key."""
    found = [(result["key"], result["fields"]["n"]) for result in runs.results()]
    in_order = all(
        [n for key, n in found if key == of] == sorted(n for key, n in found if key == of)
        for of in {key for key, _ in found}
    )
    return Counter(n for _, n in found) == Counter(range(total)) and in_order


@pytest.mark.flink
def test_ordered_keys_reject_a_changed_shard_count(make_runs: Make) -> None:
    runs = make_runs(follow=True, capacity=24, keyed=True, ordering="key")
    runs.feed([*events(0, 20), *events(20, 30, hold="a")])
    job = runs.start()
    wait_until(lambda: len(runs.calls()) == 30 and len(runs.results()) == 20)
    runs.await_checkpoint(job)
    runs.stop(job)
    runs.change(shards=16)
    with pytest.raises(SettingError, match="shards: expected 8, as in the checkpoint"):
        runs.start(restore=True)
    runs.change(ordering="unordered")
    runs.release("a")
    job = runs.start(restore=True)
    wait_until(lambda: len(runs.results()) >= 30)
    runs.stop(job)
    assert sorted(result["fields"]["n"] for result in runs.results()) == list(range(30))
