"""Counts of what sinks wrote, as recorded and merged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.written_counts import EndNote, WrittenCounts, noted_counts
from forebay.records import DeadLetter, Result, Usage

RESULT = Result("1", "k", {}, "yes", Usage(5, 2), 1, 0, 0.1, 0.1, finish_reason="stop")
CUT = Result("2", "k", {}, "ye", Usage(5, 9), 1, 0, 0.1, 0.1, finish_reason="length")
OUTPUTS = st.lists(
    st.sampled_from([RESULT, CUT, DeadLetter(b"", "late", ""), DeadLetter(b"", "timeout", "")])
)


def counted(outputs: list[Result | DeadLetter]) -> WrittenCounts:
    counts = WrittenCounts()
    for output in outputs:
        counts.add(output)
    return counts


@given(st.lists(OUTPUTS, min_size=1))
def test_the_notes_of_all_subtasks_are_the_counts_of_the_whole(
    parts: list[list[Result | DeadLetter]],
) -> None:
    notes = [
        EndNote.decode(EndNote("results", len(parts), counted(part)).encode().encode()) for part in parts
    ]
    whole = [output for part in parts for output in part]
    assert noted_counts([*notes, EndNote("other", 1, counted([RESULT]))], "results") == counted(whole)


@pytest.mark.parametrize("notes", [[], [EndNote("results", 2, WrittenCounts())]])
def test_notes_of_which_some_are_missing_are_no_count(notes: list[EndNote]) -> None:
    assert noted_counts(notes, "results") is None


def test_the_number_of_causes_is_bounded() -> None:
    counts = counted([DeadLetter(b"", f"cause_{n % 70}", "") for n in range(140)])
    assert len(counts.failed) == 51
    assert (counts.failed["cause_1"], counts.failed["other"], counts.failed.total()) == (2, 40, 140)
