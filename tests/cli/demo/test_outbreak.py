"""The topic that breaks out in a stream: found if there is one, else not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cli.demo.plan import DemoOptions, demo_of
from forebay.cli.demo.topics import SLICES, Outbreak, find_outbreak, planted_outbreak
from forebay.connectors.generator.settings import GeneratorSource
from forebay.connectors.generator.source import START_MS

EVERYDAY = ("food", "music", "pets", "school")


@pytest.mark.parametrize("events", [60, 100, 300, 1000])
@pytest.mark.parametrize("seed", range(1, 6))
def test_planted_burst_is_found_in_the_generators_topics(tmp_path: Path, events: int, seed: int) -> None:
    source = demo_of(DemoOptions(out=tmp_path, events=events, seed=seed)).spec.source
    assert isinstance(source, GeneratorSource)
    posts = [source.generator().event(index) for index in range(events)]
    found = find_outbreak((post.time_ms or 0, str(post.fields["gold_topic"])) for post in posts)
    planted = planted_outbreak(source)
    assert planted is not None
    assert found is not None
    assert found.overlaps(planted)
    assert found.factor is not None
    assert found.factor > 3


@given(st.randoms(use_true_random=False), st.integers(0, 400))
def test_steady_topics_have_no_outbreak(dice: random.Random, events: int) -> None:
    """Every topic once per round: no period has more of one than of another."""
    rounds = [dice.sample(EVERYDAY, len(EVERYDAY)) for _ in range(events // len(EVERYDAY))]
    posts = [(100 * i, topic) for i, topic in enumerate(topic for round_ in rounds for topic in round_)]
    assert find_outbreak(posts) is None


@given(st.lists(st.tuples(st.integers(0, 10**13), st.sampled_from(EVERYDAY)), max_size=60))
def test_outbreak_is_within_the_stream_and_has_its_count(posts: list[tuple[int, str]]) -> None:
    found = find_outbreak(posts)
    if found is None:
        return
    within = [topic for time_ms, topic in posts if found.start_ms <= time_ms < found.end_ms]
    assert within.count(found.topic) == found.events
    first, last = min(posts)[0], max(posts)[0]
    assert first <= found.start_ms < found.end_ms <= last + (last - first) // SLICES + 1


def test_outbreaks_agree_by_topic_and_time() -> None:
    planted = Outbreak("outage", 1000, 2000)
    assert Outbreak("outage", 900, 1800).overlaps(planted)
    assert not Outbreak("food", 1000, 2000).overlaps(planted)
    assert not Outbreak("outage", 1600, 2600).overlaps(planted)
    assert not Outbreak("outage", 0, 10_000).overlaps(planted)


def test_planted_burst_is_read_from_the_source(tmp_path: Path) -> None:
    spec = demo_of(DemoOptions(out=tmp_path, events=300)).spec
    assert planted_outbreak(spec.source) == Outbreak("outage", START_MS + 4000, START_MS + 6000)
    plain = spec.source.model_copy(update={"burst": None})
    assert planted_outbreak(plain) is None
