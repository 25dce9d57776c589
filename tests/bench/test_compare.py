"""Differences between two benchmarks: found if real, not found by chance, refused if not comparable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.bench.report.made_runs import SLO, VALID, invalid, made_run, measured

from forebay.bench.compare import (
    BOOTSTRAP,
    FIGURES,
    WELCH,
    Comparison,
    Difference,
    compare,
    comparison_document,
)
from forebay.bench.metrics import RequestSlo
from forebay.bench.records import LoadRun
from forebay.bench.report.document import Report
from forebay.bench.report.html_compare import comparison_page, difference_row, request_curves
from forebay.errors import SettingError

pytestmark = pytest.mark.heavy


def report(
    *seeds: int, slo: RequestSlo | None = SLO, verdict: Any = VALID, changes: Any = None, **values: Any
) -> Report:
    runs = (made_run(seed=seed, failing=0.0, **(values | {"requests": 300})) for seed in seeds)
    return Report("serve", tuple(measured(replace(run, **(changes or {})), slo, verdict) for run in runs))


def named(found: Comparison[Any], name: str) -> Difference:
    (load,) = found.loads
    (one,) = (one for one in load.differences if one.name == name)
    return one


def test_a_faster_engine_is_found_in_one_run_each() -> None:
    found = compare(report(0), report(1, slower=0.8))
    ttft = named(found, "TTFT mean")
    assert ttft.method == BOOTSTRAP
    assert ttft.beyond_noise
    assert ttft.better
    assert ttft.low is not None
    assert ttft.high is not None
    assert ttft.low < ttft.after - ttft.before < ttft.high < 0
    # One run each gives no interval for throughput.
    assert named(found, "requests/s").low is None
    assert named(found, "requests/s").beyond_noise is None


def test_equal_engines_do_not_differ_beyond_noise() -> None:
    """Rarely: 5 of 100 independent figures are expected to."""
    found = [compare(report(2 * seed), report(2 * seed + 1)) for seed in range(10)]
    beyond = [
        named(one, name).beyond_noise for one in found for name in ("TTFT mean", "TPOT p50", "E2EL p90")
    ]
    assert sum(map(bool, beyond)) <= 6


def test_repeats_have_intervals_over_repeats() -> None:
    found = compare(report(0, 1, 2), report(3, 4, 5, slower=0.7))
    assert {one.method for one in found.loads[0].differences} == {WELCH}
    assert named(found, "TTFT p50").better
    assert len(found.loads[0].before) == 3


def test_a_hand_made_difference() -> None:
    """Repeats with known figures: means 10 and 12, Welch's interval from the textbook."""

    def rates(*values: float) -> Report:
        whole = report(*range(len(values)))
        runs = zip(whole.runs, values, strict=True)
        return Report(
            "serve",
            tuple(replace(one, figures=replace(one.figures, requests_per_s=value)) for one, value in runs),
        )

    one = named(compare(rates(9, 10, 11), rates(11, 12, 13)), "requests/s")
    # s² = 1 each, 4 degrees of freedom: 2 ± 2.7764 · √(2/3).
    assert (one.before, one.after, one.relative) == (10, 12, 0.2)
    assert one.low == pytest.approx(2 - 2.7764 * (2 / 3) ** 0.5, abs=1e-3)
    assert one.high == pytest.approx(2 + 2.7764 * (2 / 3) ** 0.5, abs=1e-3)
    assert one.beyond_noise is False
    assert one.better is None
    assert difference_row(one) == ("requests/s", "10", "12", "+20.0%", "-2.7% to +42.7%", "within noise")


def test_loads_of_a_sweep_are_compared_each_with_its_own() -> None:
    def sweep(slower: float) -> Report:
        return Report("serve", report(0, rate_per_s=5.0, slower=slower).runs + report(0, slower=slower).runs)

    found = compare(sweep(1.0), sweep(0.8))
    assert [load.name for load in found.loads] == ["5 requests/s", "10 requests/s"]


def other(**values: Any) -> dict[str, Any]:
    return {"provenance": {**made_run(requests=1).provenance, **values}}


@pytest.mark.parametrize(
    ("b", "said"),
    [
        (report(1, changes=other(model="llama")), "model: smollm2-135m-instruct in A, llama in B"),
        (report(1, changes=other(tokenizer="llama")), "tokenizer: None in A, llama in B"),
        (report(1, rate_per_s=9.0), "schedule rate per s: 10.0 in A, 9.0 in B"),
        (report(1, tokens=99), "workload output tokens: 12 in A, 99 in B"),
        (report(1, verdict=invalid("late", "wrong")), "10 requests/s, B: INVALID: late; wrong"),
        (report(1, changes={"complete": False}), "10 requests/s, B: interrupted"),
        (report(1, slo=RequestSlo(ttft_s=9.0)), "objectives: others in A than in B"),
    ],
)
def test_incomparable_runs_are_rejected_with_the_reason(b: Report, said: str) -> None:
    with pytest.raises(SettingError) as error:
        compare(report(0), b)
    assert f"\n- {said}" in str(error.value)
    assert "--anyway" in str(error.value)
    assert compare(report(0), b, anyway=True).obstacles == (said,)


def test_all_obstacles_are_reported_at_once() -> None:
    with pytest.raises(SettingError) as error:
        compare(report(0, verdict=invalid("late")), report(1, rate_per_s=2.0, changes=other(model="x")))
    assert str(error.value).count("\n- ") == 3


def test_sweeps_without_a_load_in_common_cannot_be_compared_at_all() -> None:
    a = Report("serve", report(0, rate_per_s=1.0).runs + report(0, rate_per_s=2.0).runs)
    b = Report("serve", report(0, rate_per_s=3.0).runs + report(0, rate_per_s=4.0).runs)
    with pytest.raises(SettingError, match="they share no load"):
        compare(a, b, anyway=True)
    c = Report("serve", a.runs[:1] + b.runs[:1])
    found = compare(a, c, anyway=True)
    assert found.obstacles == ("2 requests/s: only in A", "3 requests/s: only in B")
    assert [load.name for load in found.loads] == ["1 requests/s"]


def at(report: Report, target: str) -> Report:
    runs = (replace(m, run=replace(m.run, asked={**m.run.asked, "target": target})) for m in report.runs)
    return Report("serve", tuple(runs))


def test_the_same_load_may_have_been_sent_to_another_address() -> None:
    found = compare(at(report(0), "http://one"), at(report(1), "http://other"))
    assert [load.name for load in found.loads] == ["10 requests/s"]


def test_each_target_is_compared_with_itself() -> None:
    def both(seed: int) -> Report:
        return Report("batching", at(report(seed), "static").runs + at(report(seed), "continuous").runs)

    found = compare(both(0), both(1))
    assert [load.name for load in found.loads] == ["10 requests/s, static", "10 requests/s, continuous"]
    assert {len(load.before) for load in found.loads} == {1}


def test_without_the_requests_the_figures_are_compared_without_intervals() -> None:
    bare = Report("serve", tuple(replace(m, run=replace(m.run, records=())) for m in report(1).runs))
    found = compare(report(0), bare)
    assert named(found, "TTFT mean").low is None
    assert difference_row(named(found, "TTFT mean"))[4:] == ("–", "")


def test_direction_of_improvement_depends_on_the_figure() -> None:
    more = Difference("goodput", "share", True, 0.5, 0.9, 0.3, 0.5, BOOTSTRAP)
    assert more.better
    assert replace(more, higher_is_better=False).better is False
    assert replace(more, before=0.0).relative is None
    assert difference_row(more)[1:4] == ("50 %", "90 %", "+80.0%")
    assert difference_row(replace(more, before=0.0))[3:5] == ("–", "–")


def test_seed_and_nonce_may_differ_and_so_may_the_engine() -> None:
    found = compare(report(0), report(7, changes=other(engine_version="0.32.0")))
    assert found.obstacles == ()
    assert found.changes == (("engine version", "–", "0.32.0"),)


def test_figures_of_only_one_run_are_omitted() -> None:
    found = compare(report(0), report(1, slo=None))
    assert "goodput" not in [one.name for one in found.loads[0].differences]
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)


def test_the_document_is_complete() -> None:
    found = compare(report(0), report(1, slower=0.8, changes=other(engine_version="2")))
    written = comparison_document(found)
    (load,) = written["loads"]
    assert (load["load"], load["runs"]) == ("10 requests/s", [1, 1])
    (ttft,) = (one for one in load["differences"] if one["name"] == "TTFT mean")
    assert set(ttft) >= {"before", "after", "low", "high", "method", "relative", "beyond_noise", "better"}
    assert written["changes"] == [{"setting": "engine version", "before": "–", "after": "2"}]


def test_the_page_of_a_comparison() -> None:
    found = comparison_page(compare(report(0), report(1, slower=0.8)), "a.json", "<b>.json", request_curves)
    assert "A is a.json, B is &lt;b&gt;.json" in found
    assert found.count('role="img"') == 4
    assert "circular block bootstrap" in found
    assert "<script" not in found
    refused: LoadRun = made_run(requests=300, seed=1)
    bad = Report("serve", (measured(refused, verdict=invalid("<i>late</i>")),))
    found = comparison_page(compare(report(0), bad, anyway=True), "a", "b", request_curves)
    assert "&lt;i&gt;late&lt;/i&gt;" in found
