from __future__ import annotations

import orjson
import pytest

from forebay.connectors.generator import START_MS, Generator
from forebay.connectors.posts import EVERYDAY, TOPICS, post
from forebay.connectors.schedule import Burst


def test_the_same_seed_and_index_give_the_same_event() -> None:
    config = Generator(seed=3, bursts=(Burst(1, 1),))
    assert [config.event(i) for i in range(50)] == [config.event(i) for i in range(50)]
    assert config.event(5) != Generator(seed=4, bursts=config.bursts).event(5)


def test_an_event_carries_what_is_needed_to_check_it() -> None:
    event = Generator(rate_per_s=10).event(25)
    assert event.position == "generator@25"
    assert event.time_ms == START_MS + 2500
    assert event.fields["time"] == "2026-01-01T00:00:02.500+00:00"
    assert orjson.loads(event.raw) == event.fields
    assert set(event.fields) == {"id", "user", "text", "gold_topic", "time"}


def test_the_words_do_not_change() -> None:
    # Checkpoints and answers of old runs are compared by these: a seed must mean the same for ever.
    assert post(0, 0, "outage") == {
        "id": "post-0000000",
        "user": "user382",
        "text": "Blackout at the station: lifts stuck, traffic lights dead as of today. :)",
        "gold_topic": "outage",
    }


def test_a_burst_is_about_its_topic() -> None:
    config = Generator(rate_per_s=100, bursts=(Burst(1, 1, factor=4, topic="outage", share=0.8),))
    topics = [config.event(i).fields["gold_topic"] for i in range(600)]
    assert "outage" not in topics[:100] + topics[500:]
    assert topics[100:500].count("outage") / 400 == pytest.approx(0.8, abs=0.08)
    assert set(topics) - {"outage"} == set(EVERYDAY)


def test_every_topic_reads_like_a_post() -> None:
    for topic in TOPICS:
        for index in range(100):
            text = post(1, index, topic)["text"]
            assert 10 < len(text) < 160
            assert "{" not in text
            assert text[0].isupper()
