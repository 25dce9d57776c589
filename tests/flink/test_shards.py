"""Shards are spread evenly over subtasks by Flink's rule of key groups."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.flink.shards import MAX_PARALLELISM, flink_keys, key_group, shard_of, subtask_of


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


@given(st.text(max_size=20), st.integers(1, MAX_PARALLELISM))
def test_a_key_has_one_shard(key: str, shards: int) -> None:
    assert 0 <= shard_of(key, shards) < shards
    assert shard_of(key, shards) == shard_of(key, shards)


def test_keys_spread_over_shards() -> None:
    counts = Counter(shard_of(f"user-{i}", 8) for i in range(8000))
    assert all(800 < n < 1200 for n in counts.values())


@pytest.mark.flink
def test_key_groups_are_flink_s_own(flink_logs: Path) -> None:
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
