"""Counts and their nouns."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from forebay.api.progress import lines
from forebay.cli.live import report
from forebay.counted import counted
from forebay.pipeline.snapshot import Snapshot


def test_a_noun_agrees_with_its_count() -> None:
    assert [counted(n, "dead letter") for n in (0, 1, 2, 1234)] == [
        "0 dead letters",
        "1 dead letter",
        "2 dead letters",
        "1,234 dead letters",
    ]
    assert [counted(n, "answer was", "answers were") for n in (1, 2)] == ["1 answer was", "2 answers were"]


@given(st.integers(0, 3), st.integers(0, 3))
def test_the_last_line_of_a_run_and_the_lines_of_a_program(count: int, other: int) -> None:
    last = Snapshot(
        1.0, "FINISHED", accepted=count, results=other, dead_letters=count, completion_tokens=other,
        suspect_times=other, cut_answers=count, skipped_records=other, gaps=("x",) * count,
    )  # fmt: skip
    console = Console(record=True, width=500)
    report(last, one_each=True, json=None, console=console)
    counts = {"accepted": count, "results": other, "dead_letters": count}
    said = console.export_text() + "\n".join(lines({"sort": counts}))
    assert re.search(r"\b1 (events|results|dead letters|tokens|answers|records|places)\b", said) is None
    assert re.search(r"\b[023] (event|result|dead letter|token|answer|record|place)\b", said) is None
