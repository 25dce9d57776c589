"""Topics are born, grow, drift, merge and die; the state stays small for any input."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from forebay.apps.topics.finder import Lexicon, TopicFinder
from forebay.apps.topics.values import NO_TOPIC, FoundTopics, TopicEvent, TopicSettings
from forebay.errors import MalformedRecord, SettingError

pytestmark = pytest.mark.heavy


def similarity(lexicon: Lexicon, one: str, other: str) -> float:
    a, b = lexicon.vectors([lexicon.keys(one), lexicon.keys(other)])
    return float(a @ b)


def test_vectors_have_length_1_or_are_zero() -> None:
    lexicon = Lexicon(256)
    vectors = lexicon.vectors([lexicon.keys(text) for text in ("storm hits lisbon", "", "!!", "storm")])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 0, 0, 1])
    assert lexicon.vectors([]).shape == (0, 256)


def test_order_and_case_are_ignored() -> None:
    lexicon = Lexicon(256)
    assert similarity(lexicon, "Storm hits Lisbon", "lisbon STORM hits hits") == pytest.approx(1)


def test_common_words_weigh_less_once_counted_enough() -> None:
    lexicon = Lexicon(1024)
    before = similarity(lexicon, "storm today", "goal today")
    for index in range(500):
        lexicon.learn(lexicon.keys(f"today word{index}"), 1.0)
    assert similarity(lexicon, "storm today", "goal today") == before
    lexicon.settle()
    assert similarity(lexicon, "storm today", "goal today") < before / 10


def test_large_cluster_does_not_make_its_words_common() -> None:
    little, much = Lexicon(1024), Lexicon(1024)
    for index in range(1, 500):
        for lexicon, share in ((little, 0.01), (much, 1.0)):
            lexicon.learn(lexicon.keys("storm lisbon"), share)
            lexicon.learn(lexicon.keys(f"word{index}"), 1.0)
    for lexicon in (little, much):
        lexicon.settle()
    pair = ("storm word1", "storm word2")
    assert similarity(little, *pair) > 2 * similarity(much, *pair)


def test_old_counts_fade() -> None:
    lexicon = Lexicon(64)
    lexicon.learn(lexicon.keys("storm"), 8.0)
    lexicon.settle()
    lexicon.fade(0.25)
    assert lexicon.state()[1] == 2.0


def test_clusters_continue_from_saved_state() -> None:
    lexicon = Lexicon(64)
    lexicon.learn(lexicon.keys("storm today"), 1.0)
    lexicon.settle()
    lexicon.learn(lexicon.keys("goal today"), 0.5)
    other = Lexicon.restore(lexicon.state())
    for each in (lexicon, other):
        each.settle()
    assert lexicon.state() == other.state()


WIDTH = 16
SMALL = TopicSettings(word_places=256, max_clusters=512, birth_texts=4)
SUBJECTS = (
    "storm lisbon flood rain",
    "goal final penalty referee",
    "album song concert tour",
    "vote bill senate tax",
)


@cache
def random_vector(word: str) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(word.encode("utf-8", "surrogatepass"))).normal(size=WIDTH)


def embedding(text: str) -> np.ndarray:
    """A fake embedding: the mean of its words' random vectors."""
    mean = np.mean([random_vector(word) for word in text.split() or [""]], axis=0)
    return np.asarray(mean / np.linalg.norm(mean), np.float32)


def stream(count: int, subjects: tuple[str, ...] = SUBJECTS, seed: int = 1) -> list[tuple[str, int]]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        subject = int(rng.integers(len(subjects)))
        words = rng.permutation(subjects[subject].split())[:3].tolist()
        found.append((" ".join([*words, f"w{rng.integers(1000)}"]), subject))
    return found


def add(
    finder: TopicFinder, texts: list[str], *, start_ms: int = 0, step_ms: int = 1000, batch: int = 50
) -> FoundTopics:
    topics: list[int] = []
    events: list[TopicEvent] = []
    for first in range(0, len(texts), batch):
        part = texts[first : first + batch]
        vectors = np.stack([embedding(text) for text in part])
        times = [start_ms + step_ms * (first + index) for index in range(len(part))]
        found = finder.add(part, vectors, times)
        topics += found.topics
        events += found.events
    return FoundTopics(tuple(topics), tuple(events), ())


def test_each_subject_becomes_one_topic() -> None:
    texts = stream(1024)
    finder = TopicFinder(SMALL, WIDTH)
    found = add(finder, [text for text, _ in texts])
    into = {event.topic: event.into for event in [*found.events, *finder.finish()]}
    pairs = Counter()
    for topic, (_, subject) in zip(found.topics, texts, strict=True):
        end = topic
        while into.get(end) is not None:
            end = into[end]
        pairs[end, subject] += 1
    most = sum(max(n for (_, s), n in pairs.items() if s == subject) for subject in range(4))
    assert most > 0.85 * len(texts)
    born = [event for event in found.events if event.kind == "born"]
    assert len(born) >= 4
    assert all(event.texts and event.size >= SMALL.birth_texts for event in born)


def test_rapidly_growing_subject_is_emerging() -> None:
    finder = TopicFinder(replace(SMALL, review_every=64), WIDTH)
    quiet = [text for text, _ in stream(1500)]
    add(finder, quiet, step_ms=20_000)
    boiling = [text for text, _ in stream(300, SUBJECTS[:1])]
    mixed = [text for pair in zip(boiling, quiet, strict=False) for text in pair]
    found = add(finder, mixed, start_ms=1500 * 20_000, step_ms=2_000)
    emerging = [event for event in found.events if event.kind == "emerging"]
    assert len(emerging) == 1
    assert "storm" in " ".join(emerging[0].texts) or "flood" in " ".join(emerging[0].texts)
    assert emerging[0].score >= SMALL.emerging_nats


@pytest.mark.parametrize("start_ms", [10**12, -(10**12)])
@pytest.mark.parametrize("first", [[], [10**15], [10**15, -(10**15), 10**15]])
def test_wrong_first_time_changes_neither_emergence_nor_deaths(start_ms: int, first: list[int]) -> None:
    finder = TopicFinder(replace(SMALL, review_every=64, idle_s=6_000), WIDTH)
    finder.add(["storm lisbon"] * len(first), np.stack([embedding("storm lisbon")] * 3)[: len(first)], first)
    quiet = [text for text, _ in stream(1500)]
    add(finder, quiet, start_ms=start_ms, step_ms=20_000)
    boiling = [text for text, _ in stream(300, SUBJECTS[1:2])]
    mixed = [text for pair in zip(boiling, quiet, strict=False) for text in pair]
    start_ms += 1500 * 20_000
    found = add(finder, mixed, start_ms=start_ms, step_ms=2_000)
    assert [event.kind for event in found.events].count("emerging") == 1
    later = add(finder, [text for text, _ in stream(256, SUBJECTS[2:])], start_ms=start_ms + 8_000_000)
    died = [text for event in later.events if event.kind == "died" for text in event.texts]
    assert any("storm" in text for text in died)


def test_topic_with_changing_words_has_moved() -> None:
    words = [f"s{index}" for index in range(40)]
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.permutation(words[index // 60 : index // 60 + 8])[:5]) for index in range(1900)]
    finder = TopicFinder(replace(SMALL, review_every=64, half_life_s=300, recent_s=60), WIDTH)
    found = add(finder, texts, step_ms=3000)
    assert "moved" in {event.kind for event in found.events}


def test_idle_topics_die() -> None:
    finder = TopicFinder(replace(SMALL, review_every=64, idle_s=600), WIDTH)
    first = add(finder, [text for text, _ in stream(256, SUBJECTS[:2])])
    born = {event.topic for event in first.events if event.kind == "born"}
    later = add(finder, [text for text, _ in stream(256, SUBJECTS[2:])], start_ms=3_600_000)
    died = {event.topic for event in later.events if event.kind == "died"}
    assert died
    assert died <= born


def test_similar_candidates_and_topics_merge() -> None:
    finder = TopicFinder(replace(SMALL, join=0.33, recency=0.0, merge=0.58), WIDTH)
    found = add(finder, [text for text, _ in stream(2048)])
    followed = [
        event for event in found.events if event.kind in {"merged", "folded"} and event.into is not None
    ]
    assert followed
    assert finder.live < 100


def test_pure_noise_stays_bounded() -> None:
    finder = TopicFinder(SMALL, WIDTH)
    sizes = []
    for part in range(4):
        texts = [f"x{part}-{index}a y{part}-{index}b z{part}-{index}c" for index in range(1024)]
        add(finder, texts, batch=256)
        assert finder.live <= SMALL.max_clusters
        sizes.append(len(finder.to_bytes()))
    assert sizes[-1] < 1.5 * sizes[0] + 1_000_000


def test_texts_without_words_have_no_topic() -> None:
    found = add(TopicFinder(SMALL, WIDTH), ["", "   ", "...", "storm lisbon", "\u200b"])
    assert found.topics == (NO_TOPIC, NO_TOPIC, NO_TOPIC, 0, NO_TOPIC)


def test_the_confidence_of_a_copy_is_1_without_an_embedding() -> None:
    found = TopicFinder(SMALL, 0).add(["storm hits lisbon"] * 2, np.zeros((2, 0), np.float32), [0, 1000])
    assert found.confidences == pytest.approx((0, 1), abs=1e-5)


def test_unusual_texts_are_accepted() -> None:
    texts = [
        "x " * 2**19,
        "y" * 2**20,
        "👏👏👏",
        "مرحبا بالعالم",
        "漢字かな交じり",
        "\ud800 lone",
        "e\u0301\u0301",
    ]
    finder = TopicFinder(SMALL, WIDTH)
    vectors = np.eye(len(texts), WIDTH, dtype=np.float32)
    found = finder.add(texts, vectors, [0] * len(texts))
    assert NO_TOPIC not in found.topics
    assert len(TopicFinder.from_bytes(finder.to_bytes()).to_bytes()) < 3_000_000


def test_ten_thousand_copies_do_not_move_a_centre() -> None:
    texts = [text for text, _ in stream(512, SUBJECTS[:1])]
    copies = ["storm lisbon now buy"] * 10_000
    finder = TopicFinder(SMALL, WIDTH)
    found = add(finder, texts + copies + texts, batch=512)
    assert len(set(found.topics[512:10_512])) <= 3
    assert found.topics.count(found.topics[-1]) > 200


def test_times_years_off_change_nothing() -> None:
    texts = [text for text, _ in stream(1024)]
    vectors = np.stack([embedding(text) for text in texts])
    times = [1000 * index for index in range(1024)]
    odd = [
        (-(10**13) if index % 97 == 5 else 10**15 if index % 89 == 7 else t) for index, t in enumerate(times)
    ]
    plain, strange = TopicFinder(SMALL, WIDTH), TopicFinder(SMALL, WIDTH)
    assert strange.add(texts, vectors, odd).topics == plain.add(texts, vectors, times).topics
    assert strange.live == plain.live


def test_topic_time_follows_the_slowest_partition() -> None:
    """Batches of two partitions in turn; one is a week ahead."""
    finder, week_ms = TopicFinder(SMALL, WIDTH), 7 * 86_400_000
    texts = [text for text, _ in stream(2_000)]
    told: list[TopicEvent] = []
    for first in range(0, len(texts), 100):
        part = texts[first : first + 100]
        number = first // 100 % 2
        times = [number * week_ms + 1000 * (first + index) for index in range(len(part))]
        vectors = np.stack([embedding(text) for text in part])
        told += finder.add(part, vectors, times, [f"posts/{number}"] * len(part)).events
    assert max(event.time_ms for event in told) < week_ms
    assert max(event.time_ms for event in told) > 1_000_000


def test_finder_continues_from_its_bytes() -> None:
    texts = [text for text, _ in stream(1500)] + ["", "👏", "\ud800"]
    straight, kept = TopicFinder(SMALL, WIDTH), TopicFinder(SMALL, WIDTH)
    for first in range(0, len(texts), 37):
        part = texts[first : first + 37]
        start = {"start_ms": first * 1000, "batch": 37}
        assert add(straight, part, **start) == add(kept, part, **start)
        kept = TopicFinder.from_bytes(kept.to_bytes())
    assert straight.to_bytes() == kept.to_bytes()
    assert straight.finish() == kept.finish()


@pytest.mark.parametrize("batch", [1, 13, 500])
def test_batching_of_texts_changes_nothing(batch: int) -> None:
    texts = [text for text, _ in stream(700)]
    one, other = TopicFinder(SMALL, WIDTH), TopicFinder(SMALL, WIDTH)
    assert add(one, texts, batch=batch).topics == add(other, texts, batch=64).topics


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x80", b"junk", b"\x81\xa7version\x63"])
def test_invalid_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(MalformedRecord, match="topics: "):
        TopicFinder.from_bytes(data)


@pytest.mark.parametrize(
    "change",
    [
        {"join": 1.5},
        {"recency": 1.5},
        {"recency_texts": 0.0},
        {"words": -0.1},
        {"review_every": 100},
        {"review_every": 32},
        {"max_clusters": 10},
    ],
)
def test_invalid_settings_are_rejected(change: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(change))):
        replace(SMALL, **change)


def test_inconsistent_parts_are_rejected() -> None:
    with pytest.raises(ValueError, match="2 texts, 1 times"):
        TopicFinder(SMALL, WIDTH).add(["a", "b"], np.zeros((2, WIDTH), np.float32), [0])
