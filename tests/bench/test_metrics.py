"""Every figure against hand-computed answers, and invariants for any answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.metrics import (
    RequestFigures,
    RequestSlo,
    distribution,
    is_good,
    output_tokens,
    prompt_tokens,
    request_figures,
    run_figures,
    token_times,
)
from forebay.bench.records import Chunk, LoadRun, RequestRecord


def figures_of(record: RequestRecord) -> RequestFigures:
    found = request_figures(record)
    assert found is not None
    return found


def record_of(*chunks: Chunk, **changes: object) -> RequestRecord:
    """Due at 1 s, sent at 1.25 s, with these chunks; ends half a second after the last one."""
    ended_s = (chunks[-1].at_s if chunks else 4.0) + 0.5
    record = RequestRecord(index=0, due_s=1.0, sent_s=1.25, ended_s=ended_s, chunks=chunks)
    return replace(record, **changes)  # type: ignore[arg-type]


def run_of(*records: RequestRecord, duration_s: float = 10.0) -> LoadRun:
    return LoadRun(began_at="2026-01-01T00:00:00Z", duration_s=duration_s, asked={}, records=records)


# The first content after a second, a stall of two seconds in the middle, three tokens in the last chunk.
ONE = record_of(
    Chunk(2.0, 1),
    Chunk(2.5, 1),
    Chunk(4.5, 1),
    Chunk(5.0, 3),
    asked_prompt_tokens=12,
    prompt_tokens=12,
    output_tokens=6,
)


def test_an_answer_with_known_times() -> None:
    assert figures_of(ONE) == RequestFigures(
        schedule_delay_s=0.25,
        ttft_s=1.0,
        service_ttft_s=0.75,
        tpot_s=0.6,
        itl_mean_s=0.6,
        e2el_s=4.0,
        service_e2el_s=3.75,
        token_gaps_s=(0.5, 2.0, 0.5, 0.0, 0.0),
        chunk_gaps_s=(0.5, 2.0, 0.5),
    )


def test_a_first_chunk_with_several_tokens() -> None:
    # TPOT counts every token but the first; the mean ITL every token after the first chunk.
    found = figures_of(record_of(Chunk(2.0, 4), Chunk(3.0, 1), Chunk(4.0, 1), output_tokens=6))
    assert found.tpot_s == pytest.approx(2 / 5)
    assert found.itl_mean_s == pytest.approx(2 / 2)
    assert found.token_gaps_s == (0.0, 0.0, 0.0, 1.0, 1.0)


def test_chunks_without_token_counts() -> None:
    as_many = record_of(Chunk(2.0), Chunk(2.5), Chunk(4.5), output_tokens=3)
    assert figures_of(as_many).token_gaps_s == (0.5, 2.0)
    fewer = replace(as_many, output_tokens=5)
    assert figures_of(fewer).token_gaps_s == ()
    assert figures_of(fewer).chunk_gaps_s == (0.5, 2.0)
    assert figures_of(fewer).tpot_s == pytest.approx(2.5 / 4)
    one_says = record_of(Chunk(2.0, 1), Chunk(2.5), output_tokens=4)
    assert figures_of(one_says).token_gaps_s == ()


def test_chunk_with_an_impossible_token_count() -> None:
    found = figures_of(record_of(Chunk(2.0, 1), Chunk(3.0, 2**40), output_tokens=2**40 + 1))
    assert found.token_gaps_s == ()
    assert found.chunk_gaps_s == (1.0,)
    assert found.tpot_s == pytest.approx(1 / 2**40)


def test_an_answer_without_usage() -> None:
    without = record_of(Chunk(2.0), Chunk(3.0))
    assert output_tokens(without) is None
    assert figures_of(without).tpot_s is None
    assert figures_of(without).itl_mean_s is None
    assert figures_of(without).e2el_s == 2.0
    counted = record_of(Chunk(2.0, 2), Chunk(3.0, 3))
    assert output_tokens(counted) == 5
    assert figures_of(counted).tpot_s == pytest.approx(1 / 4)


def test_an_answer_in_one_piece_or_of_one_token() -> None:
    whole = figures_of(record_of(Chunk(3.0), output_tokens=20))
    assert (whole.ttft_s, whole.e2el_s, whole.tpot_s, whole.chunk_gaps_s) == (2.0, 2.0, 0.0, ())
    assert figures_of(record_of(Chunk(3.0, 20), output_tokens=20)).itl_mean_s is None
    one = figures_of(record_of(Chunk(3.0, 1), output_tokens=1))
    assert (one.ttft_s, one.e2el_s, one.tpot_s, one.token_gaps_s) == (2.0, 2.0, None, ())


def test_an_answer_without_content_lasts_until_its_end() -> None:
    found = figures_of(record_of(ended_s=4.5, output_tokens=1))
    assert (found.ttft_s, found.service_ttft_s, found.tpot_s) == (None, None, None)
    assert (found.e2el_s, found.service_e2el_s) == (3.5, 3.25)


def test_a_run_with_known_times() -> None:
    other = replace(ONE, index=1, due_s=1.5, sent_s=1.5, output_tokens=7, prompt_tokens=8)
    broken = RequestRecord(index=2, due_s=2.0, sent_s=3.0, ended_s=4.0, output_tokens=99, error="503")
    unsent = RequestRecord(index=3, due_s=2.0, sent_s=None, ended_s=4.0, error="refused")
    found = run_figures(run_of(ONE, other, broken, unsent))
    assert (found.offered, found.answered, found.failed, found.duration_s) == (4, 2, 2, 10.0)
    assert found.requests_per_s == 0.2
    assert found.output_tokens_per_s == 1.3
    assert found.total_tokens_per_s == 3.3
    assert (found.goodput, found.good_requests_per_s) == (None, None)
    means = {name: (each.count, each.mean) for name, each in found.distributions.items()}
    assert means == {
        "schedule_delay": (3, pytest.approx(1.25 / 3)),
        "ttft": (2, 0.75),
        "service_ttft": (2, pytest.approx(0.625)),
        "tpot": (2, pytest.approx(0.55)),
        "itl_mean": (2, pytest.approx(0.55)),
        "token_gap": (10, pytest.approx(0.6)),
        "chunk_gap": (6, pytest.approx(1.0)),
        "longest_gap": (2, 2.0),
        "e2el": (2, 3.75),
        "service_e2el": (2, pytest.approx(3.625)),
        "prompt_tokens": (2, 10),
        "output_tokens": (2, 6.5),
    }


def test_a_stall_that_pooled_gaps_hide_is_seen() -> None:
    # One pause of three seconds in 20,000 gaps of 10 ms: beyond every percentile of the gaps.
    smooth = [Chunk(2 + 0.01 * i, 1) for i in range(1001)]
    stalled = [Chunk(c.at_s + (3.0 if i > 500 else 0.0), 1) for i, c in enumerate(smooth)]
    records = [record_of(*smooth, index=i, output_tokens=1001) for i in range(19)]
    found = run_figures(run_of(*records, record_of(*stalled, index=19, output_tokens=1001))).distributions
    assert found["token_gap"].percentiles[99.9] == pytest.approx(0.01)
    assert found["token_gap"].maximum == pytest.approx(3.01)
    assert found["longest_gap"].maximum == pytest.approx(3.01)
    assert found["longest_gap"].percentiles[50] == pytest.approx(0.01)


def test_token_rates_need_all_counts() -> None:
    found = run_figures(
        run_of(ONE, replace(ONE, index=1, output_tokens=None, chunks=(Chunk(2.0), Chunk(3.0))))
    )
    assert found.requests_per_s == 0.2
    assert (found.output_tokens_per_s, found.total_tokens_per_s) == (None, None)
    no_prompt = replace(ONE, prompt_tokens=None, asked_prompt_tokens=None)
    found = run_figures(run_of(no_prompt))
    assert (found.output_tokens_per_s, found.total_tokens_per_s) == (0.6, None)


def test_goodput_counts_failures_against_it() -> None:
    slow = replace(ONE, index=1, due_s=0.5)
    broken = replace(ONE, index=2, error="it broke")
    found = run_figures(run_of(ONE, slow, broken, duration_s=4.0), RequestSlo(ttft_s=1.0))
    assert found.goodput == pytest.approx(1 / 3)
    assert found.good_requests_per_s == 0.25
    assert run_figures(run_of(ONE), RequestSlo()).goodput is None


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (RequestSlo(ttft_s=1.0, tpot_s=0.6, e2el_s=4.0), True),
        (RequestSlo(ttft_s=0.99), False),
        (RequestSlo(tpot_s=0.59), False),
        (RequestSlo(e2el_s=3.99), False),
        (RequestSlo(ttft_s=2.0, e2el_s=3.99), False),
        (RequestSlo(), True),
    ],
)
def test_each_objective_counts_from_when_a_request_was_due(slo: RequestSlo, good: bool) -> None:
    assert is_good(ONE, slo) == good


MS = st.integers(0, 5_000).map(lambda ms: ms / 1024)
"""Times that are exact in binary."""
CHUNKS = st.lists(st.tuples(MS, st.integers(1, 5)), min_size=1, max_size=12)


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    due_s, delay_s, first_s = draw(MS), draw(MS), draw(MS)
    at_s, chunks = due_s + delay_s + first_s, []
    says = draw(st.booleans())
    for gap_s, tokens in draw(CHUNKS):
        chunks.append(Chunk(at_s, tokens if says else None))
        at_s += gap_s
    error = draw(st.sampled_from([None, None, None, "503"]))
    n = sum(chunk.tokens or 1 for chunk in chunks)
    return RequestRecord(
        index=0,
        due_s=due_s,
        sent_s=due_s + delay_s,
        ended_s=at_s,
        chunks=tuple(chunks),
        asked_prompt_tokens=draw(st.integers(1, 100)),
        output_tokens=n,
        error=error,
    )


@given(records())
def test_relations_between_the_figures_of_a_request(record: RequestRecord) -> None:
    found = request_figures(record)
    if found is None:
        assert record.error is not None
        return
    n = output_tokens(record)
    assert n is not None
    assert found.ttft_s is not None
    assert found.service_ttft_s is not None
    assert 0 <= found.ttft_s <= found.e2el_s
    assert found.ttft_s - found.service_ttft_s == pytest.approx(found.schedule_delay_s)
    assert found.e2el_s - found.service_e2el_s == pytest.approx(found.schedule_delay_s)
    assert len(found.token_gaps_s) == n - 1
    assert len(found.chunk_gaps_s) == len(record.chunks) - 1
    assert sum(found.token_gaps_s) == pytest.approx(sum(found.chunk_gaps_s))
    assert max(found.token_gaps_s, default=0.0) == max(found.chunk_gaps_s, default=0.0)
    assert min(found.token_gaps_s, default=0.0) >= 0
    assert len(token_times(record)) == n
    if found.tpot_s is None:
        assert n == 1
        return
    assert found.ttft_s + (n - 1) * found.tpot_s == pytest.approx(found.e2el_s)
    assert sum(found.token_gaps_s) / (n - 1) == pytest.approx(found.tpot_s)
    # A first chunk of several tokens leaves fewer over which the same time is spread.
    assert found.itl_mean_s is None or found.itl_mean_s >= found.tpot_s - 1e-12


def stretched(record: RequestRecord, by: float, plus_s: float = 0.0) -> RequestRecord:
    assert record.sent_s is not None
    return replace(
        record,
        due_s=record.due_s * by + plus_s,
        sent_s=record.sent_s * by + plus_s,
        ended_s=record.ended_s * by + plus_s,
        chunks=tuple(Chunk(chunk.at_s * by + plus_s, chunk.tokens) for chunk in record.chunks),
    )


@given(st.lists(records(), max_size=8), st.sampled_from([0.5, 2.0, 8.0]), MS)
def test_figures_are_independent_of_the_clocks_zero_and_scale(
    answers: list[RequestRecord], by: float, plus_s: float
) -> None:
    found = run_figures(run_of(*answers))
    other = run_figures(run_of(*[stretched(each, by, plus_s) for each in answers], duration_s=10.0 * by))
    assert other.requests_per_s == pytest.approx(found.requests_per_s / by)
    assert set(other.distributions) == set(found.distributions)
    for name, each in found.distributions.items():
        unit = 1.0 if name.endswith("_tokens") else by
        assert other.distributions[name].mean == pytest.approx(each.mean * unit, abs=1e-9)
        assert other.distributions[name].maximum == pytest.approx(each.maximum * unit, abs=1e-9)


@given(st.lists(records(), min_size=1, max_size=8), MS, MS)
def test_looser_objectives_raise_goodput_and_a_failure_lowers_it(
    answers: list[RequestRecord], one_s: float, other_s: float
) -> None:
    low_s, high_s = sorted((one_s, other_s))
    strict, loose = RequestSlo(low_s, low_s, low_s), RequestSlo(high_s, high_s, high_s)
    found = run_figures(run_of(*answers), strict).goodput
    looser = run_figures(run_of(*answers), loose).goodput
    assert found is not None
    assert looser is not None
    assert 0 <= found <= looser <= 1
    failed = replace(answers[0], error="it broke")
    after = run_figures(run_of(*answers, failed), strict).goodput
    assert after == pytest.approx(found * len(answers) / (len(answers) + 1))


@given(st.lists(records(), max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_records_does_not_matter(answers: list[RequestRecord], draw: object) -> None:
    shuffled = list(answers)
    draw.shuffle(shuffled)  # type: ignore[attr-defined]
    assert run_figures(run_of(*shuffled), RequestSlo(ttft_s=1.0)) == run_figures(
        run_of(*answers), RequestSlo(ttft_s=1.0)
    )


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_a_distribution_stays_within_its_samples(values: list[float]) -> None:
    found = distribution(values)
    assert found is not None
    assert found.minimum <= found.mean <= found.maximum
    assert found.std <= found.maximum - found.minimum
    told = [found.percentiles[percent] for percent in sorted(found.percentiles)]
    assert told == sorted(told)


def test_unanswered_requests_have_no_figures() -> None:
    assert request_figures(replace(ONE, error="it broke")) is None
    assert request_figures(replace(ONE, sent_s=None)) is None


def test_prompt_tokens_are_the_servers_or_those_sent() -> None:
    assert prompt_tokens(replace(ONE, prompt_tokens=15)) == 15
    assert prompt_tokens(replace(ONE, prompt_tokens=None)) == 12
    assert prompt_tokens(replace(ONE, prompt_tokens=0)) == 0


def test_empty_run() -> None:
    found = run_figures(run_of(duration_s=0.0), RequestSlo(ttft_s=1.0))
    assert (found.offered, found.requests_per_s, found.goodput) == (0, 0.0, None)
    assert found.distributions == {}


def test_unknown_figure_does_not_meet_an_objective() -> None:
    assert not is_good(replace(ONE, chunks=()), RequestSlo(ttft_s=100))
    assert not is_good(record_of(Chunk(2.0), Chunk(3.0)), RequestSlo(tpot_s=100))
    assert is_good(record_of(Chunk(2.0, 1), output_tokens=1), RequestSlo(tpot_s=0.0))


def test_percentiles_need_enough_samples() -> None:
    few = distribution([float(i) for i in range(99)])
    enough = distribution([float(i) for i in range(1000)])
    assert few is not None
    assert enough is not None
    assert set(few.percentiles) == {25, 50, 75}
    assert set(enough.percentiles) == {1, 5, 10, 25, 50, 75, 90, 95, 99}
    assert enough.percentiles[99] == pytest.approx(989.01)
    assert distribution([]) is None
