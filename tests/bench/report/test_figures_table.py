"""The figures of a run in words."""

from __future__ import annotations

import pytest
from tests.bench.report.made_runs import made_run, measured

from forebay.bench.compare import Difference
from forebay.bench.load.schedules import Bursts, ClosedLoop, Gamma, make_load
from forebay.bench.load.workloads import Exactly, RandomTokens
from forebay.bench.report.figures_table import (
    burstiness,
    concurrency,
    figure_rows,
    flattened,
    kind,
    load_name,
    loads,
    loads_table,
    rate_per_s,
)
from forebay.bench.report.html_compare import difference_row


def test_repeats_are_grouped_by_load() -> None:
    runs = [
        measured(made_run(requests=3, rate_per_s=rate, seed=seed)) for seed in (0, 1) for rate in (5.0, 9.0)
    ]
    found = loads(runs)
    assert [(name, [one.run.asked["seed"] for one in own]) for name, own in found] == [
        ("5 requests/s", [0, 1]),
        ("9 requests/s", [0, 1]),
    ]


def test_load_has_a_description() -> None:
    workload = RandomTokens(Exactly(3), Exactly(2))
    gamma, closed, burst = (
        make_load(schedule, workload, 2).asked for schedule in (Gamma(5, 0.25), ClosedLoop(8), Bursts())
    )
    assert (rate_per_s(gamma), burstiness(gamma), concurrency(gamma)) == (5, 0.25, None)
    assert (rate_per_s(closed), burstiness(closed), concurrency(closed)) == (None, 1.0, 8)
    assert [load_name(asked) for asked in (gamma, closed, burst)] == [
        "5 requests/s",
        "concurrency 8",
        "burst",
    ]
    assert kind(burst, "workload") == "random tokens"
    assert load_name({}) == "unknown"


def test_loads_of_one_name_are_distinguished_by_what_differs() -> None:
    runs = [measured(made_run(requests=requests, tokens=tokens)) for tokens in (8, 16) for requests in (3, 4)]
    assert [name for name, _ in loads(runs)] == [
        "10 requests/s, output tokens 8, requests 3",
        "10 requests/s, output tokens 8, requests 4",
        "10 requests/s, output tokens 16, requests 3",
        "10 requests/s, output tokens 16, requests 4",
    ]


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


def test_settings_within_settings() -> None:
    found = list(flattened({"versions": {"vllm": "0.32", "python": None}, "flags": ["a", 1], "seed": 0}))
    assert found == [("versions vllm", "0.32"), ("flags", "a, 1"), ("seed", "0")]
