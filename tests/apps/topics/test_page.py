"""The page of topics has births, growth, merges and labels, and escapes posts."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from forebay.apps.topics.page import read_topics, topics_page

ATTACK = "</svg><script>alert(1)</script><img src=x onerror=alert(1)>\"'"


def line(kind: str, topic: str = "0", time_ms: int = 60_000, **more: Any) -> bytes:
    answer = {
        "kind": kind,
        "topic": topic,
        "time_ms": time_ms,
        "size": 8,
        "into": None,
        "score": 0.0,
        "texts": [],
        **more,
    }
    return orjson.dumps({"id": f"topic-{topic}-{kind}-{time_ms}", "answer": answer})


def label(
    words: str, topic: str = "0", time_ms: int = 60_000, about: str = "what it is about", of: str = "born"
) -> bytes:
    answer = {
        "kind": "label",
        "topic": topic,
        "of": of,
        "label": words,
        "about": about,
        "time_ms": time_ms,
    }
    return orjson.dumps({"answer": answer, "position": f"topic-{topic}-{of}-{time_ms}"})


LIFE = [
    line("born", texts=["storm hits Lisbon"]),
    label("Storm in Lisbon"),
    line("grown", time_ms=120_000, size=16),
    line("emerging", time_ms=130_000, size=20, score=15.0),
    line("moved", time_ms=140_000, size=32),
    label("Floods after the storm", time_ms=140_000, of="moved"),
    line("born", "1", 70_000),
    label("Flooded streets", "1", 70_000),
    line("merged", "1", 150_000, size=12, into="0"),
]


def test_a_topic_has_its_life_and_its_labels() -> None:
    document = topics_page(LIFE)
    for expected in (
        "Floods after the storm",
        "before: Storm in Lisbon",
        "32 texts",
        "emerging: 1970-01-01 00:02:10 (15 nats)",
        "merged from: Flooded streets",
        "storm hits Lisbon",
        "▲",
        "◆",
        "1 of them merged",
    ):
        assert expected in document


def test_backward_clock_keeps_the_map_intact() -> None:
    lines = [line("born", time_ms=60_000), line("grown", time_ms=90_000, size=32)]
    lines += [line("grown", time_ms=80_000, size=64), line("grown", time_ms=120_000, size=65)]
    document = topics_page(lines)
    assert "j" not in "".join(re.findall(r' d="([^"]*)"', document))
    (topic,) = read_topics(lines)
    assert list(topic.sizes_at([80_000, 90_000])) == [64, 64]


def test_texts_without_times_are_shown_by_number() -> None:
    lines = [
        line("born", time=None, time_ms=11_000),
        line("emerging", time=None, time_ms=40_000, score=15.0),
        line("died", time=None, time_ms=1_200_000),
        line("born", "1", time=None, time_ms=90_000),
    ]
    document = topics_page(lines)
    assert "1970" not in document
    assert "00:" not in document
    for expected in (
        "born near text 11, until near text 1,200",
        "emerging: near text 40 (15 nats)",
        "The 2 most active topics over the texts",
        ">200<",
        ">1,000<",
    ):
        assert expected in document


def test_the_width_grows_with_the_texts() -> None:
    storm, streets = read_topics(LIFE)
    assert [size for _, size in storm.points] == [8, 16, 20, 32]
    assert streets.into is storm


def test_label_years_later_is_the_last_one() -> None:
    lines = [line("born", time_ms=5), line("moved", time_ms=9)]
    lines += [label("new", time_ms=9, of="moved"), label("old", time_ms=5)]
    assert [topic.label for topic in read_topics(lines)] == ["new"]


def test_topics_of_a_second_run_have_separate_cards() -> None:
    """Files of several subtasks are read one after another: a label may come before its topic."""
    second = [label("Goal", time_ms=90_000), line("folded", "1", 91_000), line("born", time_ms=90_000)]
    found = read_topics([*LIFE, *second])
    storm, streets, goal = sorted(found, key=lambda topic: (topic.run, topic.name))
    assert [storm.label, streets.label, goal.label] == ["Floods after the storm", "Flooded streets", "Goal"]
    assert (goal.id, streets.end_ms) == ("topic-0-1", 150_000)


def test_answers_of_two_equal_runs_belong_to_their_own_cards() -> None:
    run = [line("born"), label("Storm")]
    assert [topic.label for topic in read_topics([*run, *run])] == ["Storm", "Storm"]
    cut = [line("born"), label("Storm"), label("Storm again")]
    assert [len(topic.labels) for topic in read_topics(cut)] == [2]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["the big storm hits Lisbon", "Lisbon: big storm!"], "big storm"),
        (["...", "  late goal\n in the cup final"], "late goal in the cup final"),
        (["...", ""], "topic 0"),
    ],
)
def test_topic_without_a_label_is_named_by_its_texts(texts: list[str], expected: str) -> None:
    (topic,) = read_topics([line("born", texts=texts), label(" … ")])
    assert topic.label == expected


def test_the_map_has_the_most_active_topics_and_the_list_all() -> None:
    lines = [line("born", str(n), 1000 * n, size=8, texts=[f"subject{n}"]) for n in range(100)]
    lines += [line("grown", str(n), 200_000, size=10 + n, texts=[]) for n in range(100)]
    lines += [line("merged", "99", 200_000, size=500, into="98")]
    document = topics_page(lines)
    assert document.count('class="card"') == 100
    places = [document.index(f'href="#topic-{n}"') for n in range(98, 58, -1)]
    assert places == sorted(places)
    assert 'href="#topic-58"' not in document
    assert document.index('id="topic-59"') < document.index('id="topic-0"') < document.index('id="topic-99"')


def test_post_contents_are_shown_as_text() -> None:
    lines = [line("born", texts=[ATTACK]), label(ATTACK, about=ATTACK)]
    document = topics_page(lines)
    assert ATTACK not in document
    assert document.count("<script>") == 1
    assert "<img" not in document
    assert "&lt;img src=x" in document


def test_topic_name_is_shown_as_text() -> None:
    assert "<img" not in topics_page([line("born", '"><img src=x>')])


@pytest.mark.parametrize(
    "lines", [[], [b"junk", b"{}", b"[1]", b'{"answer": {"kind": "born"}}', line("folded")]]
)
def test_page_without_topics_states_that(lines: list[bytes]) -> None:
    assert "No topic was born" in topics_page(lines)


def test_abandoned_label_names_its_cause() -> None:
    for cause, words in (
        ("answer_cut", "its answer was cut off at max_tokens (answer_cut: why)"),
        ("answer_refused", "it refused (answer_refused: why)"),
        ("unsupported", "the texts do not support its answer (unsupported: why)"),
        ("timeout", "the call failed (timeout: why)"),
    ):
        given_up = orjson.dumps({"cause": cause, "detail": "why", "position": "topic-0-born-60000"})
        assert f"The model gave no label: {words}" in topics_page([given_up, line("born")])
        assert "gave no label" not in topics_page([given_up.replace(b"60000", b"60001"), line("born")])


def test_a_failure_is_shown_until_there_is_a_later_label() -> None:
    lines = [line("born"), line("moved", time_ms=90_000)]
    given_up = {"cause": "timeout", "detail": "why", "time_ms": 60_000, "position": "topic-0-born-60000"}
    later = label("Goal", time_ms=90_000, of="moved")
    assert "gave no label" in topics_page([*lines, orjson.dumps(given_up)])
    assert "gave no" not in topics_page([*lines, later, orjson.dumps(given_up)])
    newer = {**given_up, "time_ms": 90_000, "position": "topic-0-moved-90000"}
    assert "gave no newer label" in topics_page([*lines, label("Storm"), orjson.dumps(newer)])
