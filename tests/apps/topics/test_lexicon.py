"""Words as vectors: telling words weigh more, and what is learned waits for its turn."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.apps.topics.lexicon import Lexicon


def similarity(lexicon: Lexicon, one: str, other: str) -> float:
    a, b = lexicon.vectors([lexicon.keys(one), lexicon.keys(other)])
    return float(a @ b)


def test_vectors_have_length_1_or_are_zero() -> None:
    lexicon = Lexicon(256)
    vectors = lexicon.vectors([lexicon.keys(text) for text in ("storm hits lisbon", "", "!!", "storm")])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 0, 0, 1])
    assert lexicon.vectors([]).shape == (0, 256)


def test_order_and_case_are_nothing() -> None:
    lexicon = Lexicon(256)
    assert similarity(lexicon, "Storm hits Lisbon", "lisbon STORM hits hits") == pytest.approx(1)


def test_common_words_weigh_less_once_they_are_settled() -> None:
    lexicon = Lexicon(1024)
    before = similarity(lexicon, "storm today", "goal today")
    for index in range(500):
        lexicon.learn(lexicon.keys(f"today word{index}"), 1.0)
    assert similarity(lexicon, "storm today", "goal today") == before
    lexicon.settle()
    assert similarity(lexicon, "storm today", "goal today") < before / 10


def test_a_large_cluster_does_not_make_its_words_common() -> None:
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


def test_it_goes_on_as_before_from_its_state() -> None:
    lexicon = Lexicon(64)
    lexicon.learn(lexicon.keys("storm today"), 1.0)
    lexicon.settle()
    lexicon.learn(lexicon.keys("goal today"), 0.5)
    other = Lexicon.restore(lexicon.state())
    for each in (lexicon, other):
        each.settle()
    assert lexicon.state() == other.state()
