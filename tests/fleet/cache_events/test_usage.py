"""The order in which text blocks were last used."""

from __future__ import annotations

from forebay.fleet.cache_events.watch import MAX_BLOCKS, BlockUsage


def test_blocks_are_taken_by_their_last_use() -> None:
    usage = BlockUsage()
    usage.used((1, 2, 3), 1.0)
    usage.used((1,), 2.0)
    assert usage.take_before(1.0) == []
    assert usage.take_before(2.0) == [2, 3]
    assert usage.take_before(2.0) == []
    assert usage.take_before(3.0) == [1]


def test_only_the_latest_are_kept() -> None:
    usage = BlockUsage()
    usage.used(range(MAX_BLOCKS + 5), 1.0)
    assert len(usage) == MAX_BLOCKS
    assert min(usage.take_before(2.0)) == 5


def test_cleared() -> None:
    usage = BlockUsage()
    usage.used((1,), 1.0)
    usage.clear()
    assert usage.take_before(2.0) == []
