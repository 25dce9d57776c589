"""The topic stage: batches by number, independent of flushes and restores."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from forebay.apps.topics.finder import FOUND, TopicStage, assignments_of, shard_event_of, text_bytes
from forebay.apps.topics.values import BLOCK, Assignment, TopicEvent, TopicSettings, topic_name
from forebay.errors import MalformedRecord

SETTINGS = TopicSettings(review_every=64, patience_texts=300)


class Embedding:
    """Vectors of width 0; records the batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.batches.append(len(texts))
        return np.zeros((len(texts), 0), np.float32)


def stage(embed: Embedding | None = None) -> TopicStage:
    return TopicStage(SETTINGS, 0, embed or Embedding(), 0)


def texts(count: int = 600) -> list[tuple[int | None, str]]:
    rng = random.Random(5)
    subjects = ["storm flood Lisbon river", "goal match cup final", "market shares bank fall"]
    return [
        (1000 * index, f"{rng.choice(subjects)} {rng.choice(['today', 'now', 'again', 'live'])}")
        for index in range(count)
    ]


def events_in(outputs: list[tuple[int, bytes]]) -> list[TopicEvent]:
    return [shard_event_of(data).event for kind, data in outputs if kind == FOUND]


def assigned_in(outputs: list[tuple[int, bytes]]) -> list[Assignment]:
    return [each for kind, data in outputs if kind != FOUND for each in assignments_of(data)]


def outputs_of(
    stream: list[tuple[int | None, str]], *, flush: int = 0, save: int = 0, embed: Embedding | None = None
) -> list[tuple[int, bytes]]:
    current, outputs = stage(embed), []
    for index, (time_ms, text) in enumerate(stream, 1):
        outputs += current.take(text_bytes(time_ms, text, id=f"t{index}"))
        if flush and index % flush == 0:
            outputs += current.close(0)
        if save and index % save == 0:
            fresh = stage(embed)
            fresh.restore(current.to_bytes())
            current = fresh
    return [*outputs, *current.finish()]


def run(stream: list[tuple[int | None, str]], **more: Any) -> list[TopicEvent]:
    return events_in(outputs_of(stream, **more))


@pytest.mark.heavy
def test_topics_are_created_and_grow() -> None:
    events = run(texts())
    assert sum(event.kind == "born" for event in events) == 3
    grown = [event.size for event in events if event.kind == "grown"]
    assert grown
    assert max(grown) > 64


@pytest.mark.heavy
def test_at_the_end_every_topic_has_reported_all_its_texts() -> None:
    """Growth is checked every `review_every` texts, so for a short stream only at its end."""
    current = TopicStage(TopicSettings(), 0, Embedding(), 0)
    before = [output for time_ms, text in texts(300) for output in current.take(text_bytes(time_ms, text))]
    assert {event.kind for event in events_in(before)} == {"born"}
    ended = events_in(current.finish())
    grown = {event.topic: event.size for event in ended if event.kind == "grown"}
    assert len(grown) == 3
    assert sum(grown.values()) == 300
    assert current.finish() == []


def test_batch_size_is_the_number_of_texts_placed_at_once() -> None:
    embed = Embedding()
    run(texts(BLOCK * 3 + 5), embed=embed)
    assert embed.batches == [BLOCK, BLOCK, BLOCK, 5]


@pytest.mark.heavy
@pytest.mark.parametrize("save", [1, 7, BLOCK, 100])
def test_a_restore_changes_nothing(save: int) -> None:
    assert outputs_of(texts(), save=save) == outputs_of(texts())


@pytest.mark.heavy
def test_flush_moves_no_batch_and_changes_no_topic() -> None:
    embed = Embedding()
    assert run(texts(), flush=50, embed=embed) == run(texts())
    sums = np.cumsum(embed.batches).tolist()
    assert {BLOCK, 2 * BLOCK, 3 * BLOCK} <= set(sums)


@pytest.mark.heavy
def test_texts_without_times_are_a_second_apart() -> None:
    untimed = run([(None, text) for _, text in texts()])
    assert [event.kind for event in untimed] == [event.kind for event in run(texts())]
    assert untimed[0].time_ms > 0


@pytest.mark.heavy
@pytest.mark.parametrize("timed", [True, False])
def test_event_marks_a_real_time_also_after_a_restore(timed: bool) -> None:
    current = stage()
    outputs = []
    for time_ms, text in texts(130):
        outputs += current.take(text_bytes(time_ms if timed else None, text))
        fresh = stage()
        fresh.restore(current.to_bytes())
        current = fresh
    outputs += current.finish()
    assert outputs
    assert {shard_event_of(data).timed for kind, data in outputs if kind == FOUND} == {timed}


@pytest.mark.heavy
def test_each_text_gets_its_topic_once() -> None:
    stream = [*texts(300), (300_000, "..."), (None, "late goal in the cup")]
    outputs = outputs_of(stream, flush=50, save=7)
    found = assigned_in(outputs)
    assert [each.id for each in found] == [f"t{index}" for index in range(1, 303)]
    assert [each.time_ms for each in found] == [time_ms for time_ms, _ in stream]
    assert (found[300].topic, found[300].confidence) == (None, 0.0)
    first = {each.topic: each.confidence for each in reversed(found) if each.topic is not None}
    assert set(first.values()) == {0.0}
    assert all(0.33 <= each.confidence <= 1 for each in found[100:300])
    grown = {event.topic: event.size for event in events_in(outputs) if event.kind == "grown"}
    assert sum(each.topic == "0" for each in found) == grown[0]


@pytest.mark.heavy
def test_held_texts_are_bounded() -> None:
    current = stage()
    sizes = []
    for index in range(2000):
        current.take(text_bytes(None, f"noise{index} of{index * 7} words{index * 13}"))
        if index % 1000 == 999:
            sizes.append(len(current.to_bytes()))
    assert sizes[-1] < 1.3 * sizes[0]


def test_megabyte_text_empty_text_and_half_an_emoji_are_accepted() -> None:
    odd = [
        (None, "x" * 1_000_000),
        (None, ""),
        (None, "half \ud83d"),
        (None, "مرحبا بالعالم"),
        (-(10**14), "old"),
    ]
    events = run([*odd * 20, *texts(100)])
    assert all(event.texts == tuple(text[:280] for text in event.texts) for event in events)


def test_topic_names_are_unique_across_shards() -> None:
    assert [topic_name(0, 3), topic_name(2, 3)] == ["3", "2-3"]


def test_restored_stage_has_its_own_settings() -> None:
    before = stage()
    outputs = [each for n in range(3) for each in before.take(text_bytes(n, "storm in Lisbon", id=str(n)))]
    outputs += before.close(0)
    after = TopicStage(replace(SETTINGS, birth_texts=4), 0, Embedding(), 0)
    after.restore(before.to_bytes())
    after.take(text_bytes(3, "storm in Lisbon", id="3"))
    assert [(each.kind, each.size) for each in events_in([*outputs, *after.close(0)])] == [("born", 4)]


def test_state_of_another_embedding_is_rejected() -> None:
    other = TopicStage(SETTINGS, 0, Embedding(), 8)
    with pytest.raises(MalformedRecord, match="start over"):
        other.restore(stage().to_bytes())


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x96\x63\x00\x00\x00\x00\x00", b"junk"])
def test_invalid_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(MalformedRecord, match="topics: "):
        stage().restore(data)
