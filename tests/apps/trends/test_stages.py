"""The stages together find what one finder finds, for any assignment of shards and after any restore."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from forebay.apps.trends.stages import BookStage, CountStage, RateStage, counts_of, event_of, post_bytes
from forebay.apps.trends.values import TrendEvent, TrendSettings
from forebay.errors import MalformedRecord

SETTINGS = TrendSettings(width_bits=14)
Post = tuple[int, str]


def posts(seconds: int = 1200, per_s: int = 20) -> list[Post]:
    rng = random.Random(1)
    words = [f"word{index}" for index in range(300)]
    found = [
        (1000 * second + rng.randrange(1000), " ".join(rng.choices(words, k=6)))
        for second in range(seconds)
        for _ in range(per_s)
    ]
    found += [
        (
            int(1000 * (700 + rng.random() * 150)),
            f"word{rng.randrange(300)} big storm over Lisbon #bigstorm {i}",
        )
        for i in range(300)
    ]
    found += [(int(1000 * (800 + rng.random() * 60)), "a late goal") for _ in range(150)]
    return sorted(found)


Save = Callable[[Any, Callable[[], Any]], Any]


def straight(stage: Any, new: Callable[[], Any]) -> Any:
    return stage


def saved(stage: Any, new: Callable[[], Any]) -> Any:
    fresh = new()
    fresh.restore(stage.to_bytes())
    return fresh


def run(
    stream: list[Post], shards: int, *, save: Save = straight, shuffle: bool = False, watermarks: int = 1
) -> list[TrendEvent]:
    """The stages as Flink would run them: a watermark every few ticks, messages in any order."""
    make = {
        "count": [lambda s=s: CountStage(SETTINGS, s, shards) for s in range(shards)],
        "rate": [lambda: RateStage(SETTINGS, shards)] * shards,
        "book": [lambda: BookStage(SETTINGS)],
    }
    stages: dict[str, list[Any]] = {name: [new() for new in each] for name, each in make.items()}
    rng = random.Random(7)
    events: list[TrendEvent] = []

    def pass_on(time_ms: int) -> None:
        for name, following in (("count", "rate"), ("rate", "book")):
            outputs = [output for stage in stages[name] for output in stage.close(time_ms)]
            if shuffle:
                rng.shuffle(outputs)
            for shard, data in outputs:
                assert stages[following][shard].due_ms(data) <= time_ms
                stages[following][shard].take(data)
        events.extend(event_of(data) for _, data in stages["book"][0].close(time_ms))
        for name, each in stages.items():
            stages[name] = [save(stage, new) for stage, new in zip(each, make[name], strict=True)]

    step_ms = SETTINGS.tick_ms * watermarks
    due_ms = step_ms
    for number, (time_ms, text) in enumerate(stream):
        while time_ms >= due_ms:
            pass_on(due_ms)
            due_ms += step_ms
        for shard, data in stages["count"][number % shards].take(post_bytes(time_ms, text)):
            stages["rate"][shard].take(data)
    pass_on(2**53)
    return events + [event_of(data) for _, data in stages["book"][0].finish()]


@cache
def stream() -> list[Post]:
    return posts()


@cache
def found() -> list[TrendEvent]:
    """The reference for all tests here. Not computed on import: other workers do not need it."""
    return run(stream(), 4)


@pytest.mark.heavy
def test_the_trends_are_found_with_their_posts() -> None:
    born = [event for event in found() if event.kind == "born"]
    merged = sum(event.kind == "merged" for event in found())
    assert len(born) - merged == 2
    last = {event.trend: event for event in found() if event.kind == "ended"}
    texts = [" ".join(event.texts) for event in last.values()]
    assert any("storm over Lisbon" in each for each in texts)
    assert any("late goal" in each for each in texts)
    assert all(len(event.texts) <= 4 for event in found())


@pytest.mark.heavy
@pytest.mark.parametrize("shards", [1, 3])
def test_number_of_shards_changes_no_trend(shards: int) -> None:
    """Other words share a cell of the sketch then: onsets may differ by a few seconds."""

    def seen(events: list[TrendEvent]) -> list[tuple[str, int]]:
        return [(event.kind, event.time_ms) for event in events if event.kind != "changed"]

    others = run(stream(), shards)
    assert seen(others) == seen(found())
    for one, other in zip(others, found(), strict=False):
        assert abs(one.onset_ms - other.onset_ms) < 5_000


@pytest.mark.heavy
def test_message_order_and_watermark_times_change_nothing() -> None:
    assert run(stream(), 4, shuffle=True, watermarks=7) == found()


@pytest.mark.heavy
def test_a_restore_at_any_tick_changes_nothing() -> None:
    rng = random.Random(3)

    def sometimes(stage: Any, new: Callable[[], Any]) -> Any:
        """Each stage at other ticks: all at every tick take half a minute."""
        return saved(stage, new) if rng.random() < 0.05 else stage

    assert run(stream(), 4, save=sometimes) == found()


def test_a_hot_term_is_one_entry_per_tick_and_shard() -> None:
    stages = [CountStage(SETTINGS, shard, 4) for shard in range(4)]
    for number in range(4000):
        stages[number % 4].take(post_bytes(number, "hot"))
    messages = [output for stage in stages for output in stage.close(10_000)]
    assert len(messages) == 4 * 4
    assert sum(len(data) for _, data in messages) < 4 * 4 * 1000


def test_post_of_a_closed_tick_counts_in_the_first_open_one() -> None:
    """A restored stage gets such posts if `late_s` is longer than before."""
    stage = saved(CountStage(SETTINGS, 0, 1), lambda: CountStage(SETTINGS, 0, 1))
    stage.take(post_bytes(9_000, "goal"))
    assert len(stage.close(10_000)) == 1
    late = post_bytes(4_000, "late goal")
    assert stage.due_ms(late) == 15_000
    stage.take(late)
    ((_, data),) = stage.close(15_000)
    assert (counts_of(data).tick, counts_of(data).posts) == (2, 1)


def test_the_sketches_of_all_shards_are_as_large_as_one() -> None:
    one = len(RateStage(SETTINGS, 1).to_bytes())
    assert 8 * len(RateStage(SETTINGS, 8).to_bytes()) < 1.05 * one


@pytest.mark.heavy
def test_lone_surrogates_are_accepted() -> None:
    stream = [(index * 10, "half \ud83d of an emoji") for index in range(2000)]
    assert [event.kind for event in run([(i * 50, f"word{i}") for i in range(4000)] + [
        (200_000 + time_ms, text) for time_ms, text in stream], 2)]  # fmt: skip


@pytest.mark.parametrize("stage", [RateStage(SETTINGS, 2), BookStage(SETTINGS), CountStage(SETTINGS, 0, 2)])
@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x93\x63\xc0\xc0", b"junk"])
def test_invalid_bytes_are_rejected(stage: Any, data: bytes) -> None:
    with pytest.raises(MalformedRecord):
        stage.restore(data)
