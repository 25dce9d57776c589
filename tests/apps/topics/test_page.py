"""The page of topics has births, growth, merges and labels, and escapes posts."""

from __future__ import annotations

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
    return orjson.dumps({"answer": answer})


def label(words: str, topic: str = "0", time_ms: int = 60_000, about: str = "what it is about") -> bytes:
    answer = {
        "kind": "label",
        "topic": topic,
        "of": "born",
        "label": words,
        "about": about,
        "time_ms": time_ms,
    }
    return orjson.dumps({"answer": answer, "position": f"topic-{topic}-born-{time_ms}"})


LIFE = [
    line("born", texts=["storm hits Lisbon"]),
    label("Storm in Lisbon"),
    line("grown", time_ms=120_000, size=16),
    line("emerging", time_ms=130_000, size=20, score=15.0),
    line("moved", time_ms=140_000, size=32),
    label("Floods after the storm", time_ms=140_000),
    line("born", "1", 70_000),
    label("Flooded streets", "1"),
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
        'class="link ',
        "1 of them merged",
    ):
        assert expected in document


def test_texts_without_times_are_shown_by_their_numbers() -> None:
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
        "Map over the texts",
        ">200<",
        ">1,000<",
    ):
        assert expected in document


def test_the_width_grows_with_the_texts() -> None:
    tracks = read_topics(LIFE)
    assert [size for _, size in tracks["0"].points] == [8, 16, 20, 32]
    assert tracks["1"].into == "0"


def test_a_label_years_later_is_the_last_one() -> None:
    assert read_topics([line("born"), label("new", time_ms=9), label("old", time_ms=5)])["0"].label == "new"


def test_what_a_post_holds_is_text() -> None:
    lines = [line("born", texts=[ATTACK]), label(ATTACK, about=ATTACK)]
    document = topics_page(lines)
    assert ATTACK not in document
    assert document.count("<script>") == 1
    assert "<img" not in document
    assert "&lt;img src=x" in document


def test_a_name_of_a_topic_is_no_markup_either() -> None:
    assert "<img" not in topics_page([line("born", '"><img src=x>')])


@pytest.mark.parametrize(
    "lines", [[], [b"junk", b"{}", b"[1]", b'{"answer": {"kind": "born"}}', line("folded")]]
)
def test_without_topics_it_says_so(lines: list[bytes]) -> None:
    assert "No topic was born" in topics_page(lines)


def test_a_label_that_was_given_up_names_its_cause() -> None:
    letter = {"cause": "answer_cut", "detail": "at max_tokens", "position": "topic-0-born-8-60000"}
    given_up = orjson.dumps({**letter, "input": orjson.dumps({"topic": "0"}).decode()})
    words = "The model was asked for a label and did not answer: answer_cut: at max_tokens"
    assert words in topics_page([line("born"), given_up])
    assert words not in topics_page([line("born")])
