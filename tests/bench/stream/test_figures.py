"""The figures of runs with known times."""

from __future__ import annotations

import pytest
from tests.bench.stream.stream_runs import STAGES_S, even, event, lost, stream_run

from forebay.bench.records import EngineSample
from forebay.bench.stream.events import EventSlo
from forebay.bench.stream.figures import STAGES, stage_s, stream_figures
from forebay.bench.stream.records import MOMENTS, MeasuredCheckpoint


def test_each_stage_has_its_known_time() -> None:
    figures = stream_figures(stream_run(even(1000)))
    for (name, _), took_s in zip(STAGES.items(), STAGES_S, strict=True):
        found = figures.stages[name]
        assert (found.mean, found.percentiles[99]) == pytest.approx((took_s, took_s), abs=1e-9), name
    assert figures.latency["committed"].percentiles[50] == pytest.approx(sum(STAGES_S))
    assert figures.latency["answered"].percentiles[50] == pytest.approx(sum(STAGES_S[:6]))


def test_the_stages_of_an_event_are_its_whole_latency() -> None:
    one = event(0, 3.0)
    assert one.committed_s is not None
    took_s = [stage_s(one, name) for name in STAGES]
    assert sum(each for each in took_s if each is not None) == pytest.approx(one.committed_s - one.due_s)
    # Each begins where the one before ends.
    assert [begin for begin, _, _ in STAGES.values()] == list(MOMENTS[:-1])
    assert [end for _, end, _ in STAGES.values()] == list(MOMENTS[1:])


def test_rates_count_from_the_first_event() -> None:
    figures = stream_figures(stream_run(even(101)))
    assert figures.answered_per_s == pytest.approx(101 / (10.0 + sum(STAGES_S[:6])))
    assert figures.committed_per_s == pytest.approx(101 / (10.0 + sum(STAGES_S)))


def test_a_p99_needs_a_thousand_events() -> None:
    assert 99 not in stream_figures(stream_run(even(999))).latency["committed"].percentiles
    assert 99 in stream_figures(stream_run(even(1000))).latency["committed"].percentiles


def test_failures_count_against_goodput() -> None:
    events = [
        event(0, 0.0),
        event(1, 0.1, committed_s=5.0),
        lost(2, 0.2),
        lost(3, 0.3, error="too_long: the prompt"),
    ]
    figures = stream_figures(stream_run(events), EventSlo(within_s=1.0))
    assert (figures.committed, figures.lost, figures.failed) == (2, 1, 1)
    assert figures.goodput == 0.25
    assert figures.good_per_s == pytest.approx(1 / 5.0)
    answered = stream_figures(stream_run(events), EventSlo(within_s=1.0, until="answered"))
    assert answered.goodput == 0.5


def test_what_was_answered_and_not_committed_is_not_good() -> None:
    events = [event(0, 0.0), event(1, 0.1, committed_s=None, results=0)]
    assert stream_figures(stream_run(events), EventSlo(within_s=9.0, until="answered")).goodput == 0.5


def test_doubled_results_are_counted() -> None:
    assert stream_figures(stream_run([event(0, 0.0, results=2), event(1, 1.0)])).doubled == 1


def test_checkpoints_and_samples_have_distributions() -> None:
    done = [MeasuredCheckpoint(n, n * 1.0, 0.02 * n, 1000 * n, 10) for n in (1, 2, 3)]
    samples = (EngineSample(0.0, {"running": 2.0, "watermark_delay_s": 5.5}), EngineSample(1.0, {}))
    failed = MeasuredCheckpoint(4, 4.0, 600.0, 0, 0, completed=False)
    figures = stream_figures(stream_run(even(3), checkpoints=(*done, failed), samples=samples))
    assert (figures.checkpoints, figures.failed_checkpoints) == (3, 1)
    assert figures.checkpoint["duration_s"].mean == pytest.approx(0.04)
    assert figures.checkpoint["state_bytes"].maximum == 3000
    assert figures.samples["running"].mean == 2.0
    assert figures.watermark_delay is not None
    assert figures.watermark_delay.mean == 5.5


def test_a_run_without_events_has_figures() -> None:
    figures = stream_figures(stream_run([]), EventSlo(within_s=1.0))
    assert (figures.offered, figures.goodput, figures.latency) == (0, None, {})
