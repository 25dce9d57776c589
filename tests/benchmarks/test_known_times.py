"""Each figure against the server's log: equal, over real sockets, except for effects of clocks."""

from __future__ import annotations

import pytest
from benchmarks.known_times import (
    CASES,
    PROMPT_TOKENS,
    Case,
    CaseFound,
    Measure,
    compare,
    is_right,
    load_of,
    run_case,
    target_of,
)
from benchmarks.timed_server import SentAnswer, Step, TimedAnswer, TimedServer, fetch_log, timed_process

from forebay.bench.client import run_load
from forebay.bench.records import Chunk, LoadRun, RequestRecord

REQUESTS = 3


def quick(case: Case) -> Case:
    """The same answers in a tenth of the time."""
    steps = tuple(Step(step.after_s / 10, step.tokens, step.role) for step in case.answer.steps)
    answer = TimedAnswer(
        steps,
        case.answer.end_after_s / 10,
        case.answer.usage,
        case.answer.counted_tokens,
        case.answer.cached_tokens,
    )
    return Case(case.about, answer, case.output_tokens, case.chat, case.reasons)


@pytest.mark.parametrize("name", CASES)
async def test_figures_over_real_sockets(name: str) -> None:
    case = quick(CASES[name])
    async with TimedServer([case.answer] * REQUESTS) as server:
        target = target_of(case, server.url)
        async with target.open():
            run = await run_load(target, load_of(case, REQUESTS))
    found = compare(name, case, run, server.sent)
    # How long either side took to be woken is the machine's; what was counted, and the verdict, are not.
    assert [words for words in found.wrong if "_per_s" not in words] == []
    assert (found.missing, found.surplus) == ((), ())
    measures = {each.name: each for each in found.measures}
    for count in ("chunks", "token gaps"):
        assert measures[count].worst_error == 0
    # A client cannot have read what was not written yet: no figure of the first content counts another chunk.
    records = sorted(run.records, key=lambda record: record.sent_s or 0.0)
    for record, sent in zip(records, server.sent, strict=True):
        assert record.sent_s is not None
        assert record.chunks[0].at_s - record.sent_s >= sent.chunks[0][0] - sent.read_s
        assert record.prompt_tokens == (PROMPT_TOKENS if case.answer.usage else None)


def test_a_server_of_its_own_process_reports_what_it_did() -> None:
    case = quick(CASES["several"])
    with timed_process([case.answer] * 2) as url:
        run = run_case(case, url, 2)
        sent = fetch_log(url)
    assert [record.error for record in run.records] == [None, None]
    assert [[tokens for _, tokens in each.chunks] for each in sent] == [[4] * 5] * 2
    assert all(each.read_s < each.chunks[0][0] <= each.chunks[-1][0] <= each.ended_s for each in sent)


def counted(*, late_s: float = 0.0) -> CaseFound:
    """A run of one request with known times, whose client read everything late by `late_s`."""
    case = Case("three tokens", TimedAnswer((Step(0.5), Step(0.25), Step(0.25))), output_tokens=3)
    sent = SentAnswer(100.0, [(100.5, 1), (100.75, 1), (101.0, 1)], 101.0)
    record = RequestRecord(
        index=0,
        due_s=0.0,
        sent_s=0.0,
        ended_s=1.0,
        first_byte_s=0.5,
        chunks=(Chunk(0.5 + late_s, 1), Chunk(0.75, 1), Chunk(1.0, 1)),
        output_tokens=3,
        asked_output_tokens=3,
    )
    run = LoadRun("2026-01-01T00:00:00+00:00", 1.0, {}, (record,))
    return compare("three", case, run, [sent])


def test_correct_and_incorrect_figures() -> None:
    assert counted().right
    assert all(each.worst_error == 0 for each in counted().measures)
    late = counted(late_s=0.02)
    assert not late.right
    wrong = {each.name for each in late.measures if not each.right}
    assert wrong == {"service_ttft", "tpot", "itl_mean", "chunk_gap", "token_gap"}


@pytest.mark.parametrize(
    ("found", "true", "right"),
    [(0.1009, 0.1, True), (0.1011, 0.1, False), (2.019, 2.0, True), (2.03, 2.0, False), (0.0, 0.0, True)],
)
def test_a_hundredth_or_a_millisecond(found: float, true: float, right: bool) -> None:
    assert is_right(found, true) == right
    assert Measure("ttft", found, true, true, true, 0.0).right == right
    assert Measure("ttft", true, true, found, true, 0.0).right == right
