"""A checkpoint keeps its number of shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from forebay.errors import SettingError
from forebay.flink import shards
from forebay.flink.shards import name_of, shards_uid
from forebay.testing.waiting import wait_until


def holds(monkeypatch: pytest.MonkeyPatch, uids: tuple[str, ...] | None) -> None:
    """Let the restored checkpoint contain state of operators with these uids."""
    monkeypatch.setattr(shards, "restored_uids", lambda env: None if uids is None else frozenset(uids))


def test_a_checkpoint_keeps_its_number_of_shards(monkeypatch: pytest.MonkeyPatch) -> None:
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
