"""Terminal output for one run and for several."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from tests.bench.report.made_runs import VALID, failed, invalid, made_run, measured

from forebay.bench.report.document import MeasuredRun
from forebay.cli.bench_figures import show_runs

RATES = (5.0, 10.0, 20.0)


def shown(*runs: MeasuredRun) -> list[str]:
    output = StringIO()
    show_runs(runs, Console(file=output, width=80))
    return output.getvalue().splitlines()


def sweep(repeats: int) -> list[MeasuredRun]:
    return [
        measured(made_run(requests=300, rate_per_s=rate, seed=seed, failing=0.0), verdict=VALID)
        for rate in RATES
        for seed in range(repeats)
    ]


def test_a_sweep_has_a_row_for_each_load() -> None:
    lines = shown(*sweep(1))
    rows = [line.split() for line in lines if "VALID" in line]
    assert [row[:3] for row in rows] == [[f"{rate:g}", "requests/s", "VALID"] for rate in RATES]
    medians = [measured(made_run(requests=300, rate_per_s=r, failing=0.0)).figures for r in RATES]
    found = [float(row[5]) for row in rows]
    true = [each.distributions["ttft"].percentiles[50] * 1000 for each in medians]
    assert found == pytest.approx(true, rel=0.005)
    assert max(map(len, lines)) <= 80


def test_repeats_are_one_row_with_intervals() -> None:
    lines = shown(*sweep(3))
    rows = [line for line in lines if "VALID" in line]
    assert len(rows) == len(RATES)
    assert all(row.count("±") == 6 for row in rows)
    assert not any("…" in line for line in lines)
    assert max(map(len, lines[:-1])) <= 80
    assert "95 % confidence interval" in lines[-1]


def test_problems_of_a_load_are_listed_below_the_table() -> None:
    runs = sweep(2)
    runs[2:4] = [replace(one, verdict=invalid("the answers fell behind")) for one in runs[2:4]]
    broken = (failed(900, 1.0), failed(901, 1.0, "cut"))
    for place in (4, 5):
        run = replace(runs[place].run, records=(*runs[place].run.records, *broken))
        runs[place] = replace(runs[place], run=run)
    runs[5] = replace(runs[5], run=replace(runs[5].run, complete=False), verdict=None)
    lines = shown(*runs)
    assert "10 requests/s: the answers fell behind (2 runs)" in lines
    assert "20 requests/s: 2 × 503: overloaded" in lines
    assert "20 requests/s: 2 × cut" in lines
    assert any(line.startswith("20 requests/s: interrupted") for line in lines)


def test_one_run_is_shown_in_full() -> None:
    lines = shown(replace(sweep(1)[0], verdict=invalid("late")))
    assert lines[1:4] == ["5 requests/s", "INVALID", "  late"]
    assert any(line.startswith("TTFT, response, ms") for line in lines)
    assert "not judged" in shown(measured(made_run(requests=3)))
    assert shown() == []
