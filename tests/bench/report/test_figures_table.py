"""The figures of a run in words."""

from __future__ import annotations

import pytest
from tests.bench.report.made_runs import made_run, measured

from forebay.bench.compare import Difference
from forebay.bench.report.figures_table import figure_rows, loads_table
from forebay.bench.report.html_compare import difference_row


@pytest.mark.parametrize("slower", [0.001, 1.0, 100.0])
def test_all_times_of_a_table_are_in_milliseconds(slower: float) -> None:
    run = measured(made_run(slower=slower))
    names = [row[0] for row in figure_rows(run.figures)]
    units = {name.rsplit(", ", 1)[1] for name in names if not name.startswith(("prompt", "output"))}
    assert units == {"ms"}
    header, _ = loads_table([("one", [run])])
    assert [name for name in header if " p50, " in name] == ["TTFT p50, ms", "TPOT p50, ms", "E2EL p50, ms"]


@pytest.mark.parametrize(
    ("before_s", "words"), [(0.0004, "0.4 ms"), (0.5, "500 ms"), (12.5, "12,500 ms"), (0.0, "0 ms")]
)
def test_all_times_of_a_comparison_are_in_milliseconds(before_s: float, words: str) -> None:
    assert difference_row(Difference("TTFT p50", "s", False, before_s, 0.1))[1] == words
