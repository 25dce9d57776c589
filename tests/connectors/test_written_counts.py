"""Counts of what sinks wrote, as recorded and merged."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.written_counts import MAX_KEYS, EndNote, WrittenCounts, noted_counts
from forebay.records import DeadLetter, Result, Usage

RESULT = Result("1", "k", {}, "yes", Usage(5, 2), 1, 0, 0.1, 0.1, finish_reason="stop")
CUT = Result("2", "k", {}, "ye", Usage(5, 9), 1, 0, 0.1, 0.1, finish_reason="length")
PAID = replace(RESULT, cost_pico=3 * 10**21)
LETTER = DeadLetter(b"", "timeout", "")
OUTPUTS = st.lists(
    st.sampled_from(
        [RESULT, CUT, DeadLetter(b"", "late", ""), LETTER, PAID, replace(LETTER, key="k", cost_pico=0)]
    )
)


def counted(outputs: list[Result | DeadLetter]) -> WrittenCounts:
    counts = WrittenCounts()
    for output in outputs:
        counts.add(output)
    return counts


@given(st.lists(OUTPUTS, min_size=1))
def test_subtask_notes_add_up_to_the_total(
    parts: list[list[Result | DeadLetter]],
) -> None:
    notes = [
        EndNote.decode(EndNote("results", len(parts), counted(part)).encode().encode()) for part in parts
    ]
    whole = [output for part in parts for output in part]
    assert noted_counts([*notes, EndNote("other", 1, counted([RESULT]))], "results") == counted(whole)


@pytest.mark.parametrize("notes", [[], [EndNote("results", 2, WrittenCounts())]])
def test_incomplete_notes_give_no_count(notes: list[EndNote]) -> None:
    assert noted_counts(notes, "results") is None


@given(st.randoms(use_true_random=False), st.integers(0, 400))
def test_the_keys_that_cost_most_are_found(random: Random, calls: int) -> None:
    paid = [(random.randrange(150), random.randrange(1000)) for _ in range(calls)]
    parts = [counted([replace(RESULT, key=f"k{key}", cost_pico=cost)]) for key, cost in paid]
    exact = Counter[str]()
    for key, cost in paid:
        exact[f"k{key}"] += cost
    found = WrittenCounts.sum(parts).costs
    assert found.pico == (exact.total() if paid else None)
    assert len(found.by_key) <= MAX_KEYS
    for key, cost in exact.items():
        at_most_low = exact.total() // MAX_KEYS if len(exact) > MAX_KEYS else 0
        assert cost - at_most_low <= found.by_key.get(key, 0) <= cost


def test_a_key_that_begins_to_cost_late_is_found() -> None:
    early = [replace(RESULT, key=f"k{n}", cost_pico=10) for n in range(MAX_KEYS)]
    late = [replace(RESULT, key="late", cost_pico=1)] * 500
    assert counted([*early, *late]).costs.by_key["late"] >= 500 - (1000 + 500) // MAX_KEYS


def test_the_number_of_causes_is_bounded() -> None:
    counts = counted([DeadLetter(b"", f"cause_{n % 70}", "") for n in range(140)])
    assert len(counts.failed) == 51
    assert (counts.failed["cause_1"], counts.failed["other"], counts.failed.total()) == (2, 40, 140)
