"""The measurement of a new pipeline against the engine alone, in small, and its arithmetic."""

from __future__ import annotations

from benchmarks.pipeline_start import PipelineStartOptions, Stopwatch, report

from forebay.testing.replica import WorkReport


def test_the_ratio_decides() -> None:
    options = PipelineStartOptions()
    found = report(options, {"direct": [40.0, 41.0, 90.0], "pipeline": [45.0]})
    assert (found["direct_s"], found["pipeline_s"], found["passed"]) == (41.0, 45.0, True)
    assert not report(options, {"direct": [40.0], "pipeline": [49.0]})["passed"]


def work(calls: int, answers: int) -> WorkReport:
    return WorkReport(1.0, 0.0, 0.0, 0.0, answers, calls, 0, 0, 0)


def test_time_counts_from_the_first_call_to_the_last_answer() -> None:
    watch = Stopwatch()
    for now_s, calls, answers in ((1.0, 0, 0), (2.0, 4, 0), (5.0, 8, 3), (9.0, 8, 8), (20.0, 8, 8)):
        watch.look(work(calls, answers), now_s)
    assert (watch.took_s, watch.answers) == (7.0, 8)
