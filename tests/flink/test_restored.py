"""Where shards lie is known by the checkpoint that a job restores, and does not change under its state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from forebay.errors import SettingError
from forebay.flink import infer as infer_module
from forebay.flink import restored
from forebay.flink.restored import even_shards, name_of, shards_uid
from forebay.testing.waiting import wait_until


@pytest.mark.parametrize(
    ("uids", "even"),
    [
        (None, True),
        ((), True),
        (("source events", "infer"), False),
        (("source events", "infer: 8 shards"), True),
        # Of stages that ask nothing.
        (("source events", "infer-clock", "infer-rates"), True),
    ],
    ids=str,
)
def test_shards_fall_evenly_unless_the_checkpoint_is_of_a_version_in_which_they_did_not(
    uids: tuple[str, ...] | None, even: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds(monkeypatch, uids)
    assert even_shards(None, "infer") is even


def holds(monkeypatch: pytest.MonkeyPatch, uids: tuple[str, ...] | None) -> None:
    """Have the checkpoint that is restored hold the state of operators with these uids."""
    monkeypatch.setattr(restored, "restored_uids", lambda env: None if uids is None else frozenset(uids))


def test_a_checkpoint_keeps_its_number_of_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    holds(monkeypatch, None)
    assert shards_uid(None, "infer", 8, bound=True) == "infer: 8 shards"
    holds(monkeypatch, ("infer: 8 shards", "other: 16 shards"))
    assert shards_uid(None, "infer", 8, bound=True) == "infer: 8 shards"
    assert shards_uid(None, "infer", 32, bound=False) == "infer: 8 shards"
    assert shards_uid(None, "new", 4, bound=True) == "new: 4 shards"
    with pytest.raises(SettingError, match=r"shards: expected 8, as in the checkpoint .* found 32"):
        shards_uid(None, "infer", 32, bound=True)
    holds(monkeypatch, ("infer",))
    assert shards_uid(None, "infer", 32, bound=True) == "infer"


def test_an_operators_name_is_in_its_uid() -> None:
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
    """Whether each event was answered once, and those of a key in their order."""
    found = [(result["key"], result["fields"]["n"]) for result in runs.results()]
    in_order = all(
        [n for key, n in found if key == of] == sorted(n for key, n in found if key == of)
        for of in {key for key, _ in found}
    )
    return Counter(n for _, n in found) == Counter(range(total)) and in_order


@pytest.mark.flink
def test_state_of_a_version_with_uneven_shards_lives_on_where_it_is(
    make_runs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = make_runs(follow=True, capacity=24, keyed=True, ordering="key")
    runs.feed([*events(0, 40), *events(40, 60, hold="a")])
    with monkeypatch.context() as older:
        older.setattr(infer_module, "even_shards", lambda env, name: False)
        older.setattr(infer_module, "shards_uid", lambda env, name, shards, bound: name)
        job = runs.start()
        wait_until(lambda: len(runs.calls()) == 60 and len(runs.results()) == 40)
        runs.await_checkpoint(job)
        runs.stop(job)
    for total, parallelism in ((80, 2), (100, 1)):
        runs.feed(events(total - 20, total))
        runs.release("a")
        job = runs.start(parallelism=parallelism, restore=True)
        wait_until(lambda total=total: len(runs.results()) >= total)
        runs.await_checkpoint(job)
        runs.stop(job)
        assert exact(runs, total)


@pytest.mark.flink
def test_where_keys_have_an_order_another_number_of_shards_is_refused(make_runs: Make) -> None:
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
