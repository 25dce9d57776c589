"""A good run is VALID; each way in which a run can mislead is reported, and no other."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from forebay.bench.records import Chunk, EngineSample, LoadRun, RequestRecord
from forebay.bench.verdict import judge

RATE_PER_S = 10.0
TOKENS = 20


def record_at(index: int, due_s: float, *, delay_s: float = 0.0005, service_s: float = 1.0) -> RequestRecord:
    """An ideal request: 20 tokens for a prompt of 100, one every 20th of its service time."""
    sent_s = due_s + delay_s
    at_s = [sent_s + service_s * (i + 1) / TOKENS for i in range(TOKENS)]
    return RequestRecord(
        index=index,
        due_s=due_s,
        sent_s=sent_s,
        ended_s=at_s[-1] + 0.001,
        first_byte_s=at_s[0],
        chunks=tuple(Chunk(each_s, 1) for each_s in at_s),
        asked_prompt_tokens=100,
        asked_output_tokens=TOKENS,
        prompt_tokens=100,
        output_tokens=TOKENS,
        cached_tokens=0,
        finish_reason="length",
        status=200,
    )


def run_of(
    records: Sequence[RequestRecord], schedule: Mapping[str, Any] | None = None, **changes: Any
) -> LoadRun:
    asked = {"schedule": schedule or {"kind": "constant", "rate_per_s": RATE_PER_S}, "requests": len(records)}
    duration_s = max((record.ended_s for record in records), default=0.0)
    return replace(LoadRun("2026-01-01T00:00:00+00:00", duration_s, asked, tuple(records)), **changes)


def constant(count: int = 200, **how: float) -> list[RequestRecord]:
    return [record_at(index, index / RATE_PER_S, **how) for index in range(count)]


def poisson(count: int, seed: int, rate_per_s: float = RATE_PER_S) -> list[float]:
    draw, now_s, found = random.Random(seed), 0.0, []
    for _ in range(count):
        now_s += draw.expovariate(rate_per_s)
        found.append(now_s)
    # Like the schedules: the rate is met exactly.
    return [at_s * count / rate_per_s / now_s for at_s in found]


def served(due_s: Sequence[float], places: int, service_s: Callable[[int], float]) -> list[RequestRecord]:
    free_s = [0.0] * places
    found = []
    for index, at_s in enumerate(due_s):
        begin_s = max(at_s, heapq.heappop(free_s))
        heapq.heappush(free_s, begin_s + service_s(index))
        found.append(record_at(index, at_s, service_s=begin_s + service_s(index) - at_s))
    return found


def changed(
    records: Sequence[RequestRecord], which: Callable[[int], bool], **how: Any
) -> list[RequestRecord]:
    return [replace(each, **how) if which(each.index) else each for each in records]


GOOD = {
    "constant": run_of(constant()),
    "one request": run_of(constant(1)),
    "poisson": run_of(
        [record_at(i, at_s) for i, at_s in enumerate(poisson(2000, 1))],
        {"kind": "poisson", "rate_per_s": RATE_PER_S},
    ),
    "a burst": run_of([record_at(i, 0.0, delay_s=i * 1e-5) for i in range(300)], {"kind": "burst"}),
    "bursts": run_of(
        [record_at(i, i // 50 * 2.0, delay_s=i % 50 * 1e-5) for i in range(500)],
        {"kind": "bursts", "size": 50, "every_s": 2.0},
    ),
    "closed": run_of([record_at(i, i // 4 * 1.001) for i in range(40)], {"kind": "closed", "concurrency": 4}),
    "fewer requests than places": run_of(
        [record_at(i, 0.0) for i in range(3)], {"kind": "closed", "concurrency": 4}
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_run_is_valid(name: str) -> None:
    found = judge(GOOD[name])
    assert (found.reasons, found.valid, found.word) == ((), True, "VALID")


EVERY = range(200)
BROKEN: dict[str, tuple[LoadRun, str]] = {
    "interrupted": (
        run_of(constant(), complete=False, asked={"requests": 500}),
        "interrupted: 200 of 500 requests were recorded",
    ),
    "nothing sent": (run_of([]), "no request was sent"),
    "late": (
        run_of([record_at(i, i / 10, delay_s=0.02 if i % 20 == 7 else 0.001) for i in EVERY]),
        "the client could not keep its schedule: 10 of 200 requests were sent more than 5 ms late",
    ),
    "late in a closed loop": (
        run_of(
            [record_at(i, i // 4 * 1.1, delay_s=0.05) for i in range(40)],
            {"kind": "closed", "concurrency": 4},
        ),
        "the client could not keep its schedule: 40 of 40",
    ),
    "moved": (
        run_of([record_at(i, i / 8) for i in EVERY]),
        "requests were due at 8.04/s, and 10/s were asked for",
    ),
    "clock": (
        run_of(changed(constant(), lambda i: i == 5, ended_s=0.5)),
        "times run backwards in 1 of 200 requests, first in request 5",
    ),
    "sent before it was due": (
        run_of([record_at(i, i / 10, delay_s=-0.05 if i == 9 else 0.0) for i in EVERY]),
        "times run backwards in 1 of 200 requests, first in request 9",
    ),
    "no time at all": (
        run_of(changed(constant(), lambda i: i == 5, first_byte_s=float("nan"))),
        "times run backwards in 1 of 200 requests, first in request 5",
    ),
    "errors": (
        run_of(changed(constant(), lambda i: i in {3, 4}, error="overloaded: 503")),
        "2 of 200 requests failed; most often (2): overloaded: 503",
    ),
    "concurrency": (
        run_of([record_at(i, i // 3 * 1.1) for i in range(40)], {"kind": "closed", "concurrency": 4}),
        "at most 3 requests were in flight, and 4 were asked for",
    ),
    "too few sessions": (
        run_of(
            [replace(record_at(i, i * 1.1), session="a") for i in range(3)],
            {"kind": "closed", "concurrency": 4},
        ),
        "at most 1 requests were in flight, and 4 were asked for",
    ),
    "no usage": (
        run_of(
            changed(
                constant(), lambda i: i == 3, output_tokens=None, chunks=(Chunk(0.9), Chunk(1.0)), ended_s=1.4
            )
        ),
        "1 of 200 requests have no token count",
    ),
    "no first token": (
        run_of(changed(constant(), lambda i: i < 5, chunks=(), finish_reason="tool_calls")),
        "5 of 200 requests have tokens by their usage and no event with any of the answer (request 0, finish "
        "reason tool_calls): they are missing from the times to first token",
    ),
    "usage": (
        run_of(changed(constant(), lambda i: i < 10, output_tokens=5, asked_output_tokens=5)),
        "the usage of 10 of 200 requests has fewer tokens than arrived; request 0: 5 tokens by its "
        "usage, 20 arrived",
    ),
    "max_tokens ignored": (
        run_of(changed(constant(), lambda i: i < 10, asked_output_tokens=12)),
        "10 of 200 requests have other lengths than asked for; request 0: prompt of 100 tokens for 100, "
        "answer of 20 for 12",
    ),
    "short answers": (
        run_of(changed(constant(), lambda i: i < 10, asked_output_tokens=30)),
        "answer of 20 for 30",
    ),
    "prompts": (
        run_of(changed(constant(), lambda i: i < 10, prompt_tokens=120)),
        "prompt of 120 tokens for 100",
    ),
    "cache": (
        run_of(changed(constant(), lambda i: i % 4 == 0, cached_tokens=64)),
        "16.0% of the prompts' tokens came from a prefix cache",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_misleading_conditions_only_are_reported(name: str) -> None:
    run, words = BROKEN[name]
    found = judge(run)
    assert not found.valid
    assert found.word == "INVALID"
    assert len(found.reasons) == 1, found.reasons
    assert words in found.reasons[0]


def test_requests_that_were_never_sent_have_failed() -> None:
    lost = changed(constant(2), lambda i: True, sent_s=None, chunks=(), error="unreachable: refused")
    assert judge(run_of(lost)).reasons == (
        "no request was answered",
        "2 of 2 requests failed; most often (2): unreachable: refused",
    )
    assert judge(run_of(lost)).notes == ()


def test_a_delay_that_is_small_next_to_the_first_token_does_not_matter() -> None:
    # The first token after a second: 9 ms are less than a hundredth.
    slow = [record_at(i, i / 10, delay_s=0.009, service_s=20.0) for i in range(40)]
    assert judge(run_of(slow)).valid
    fast = [record_at(i, i / 10, delay_s=0.009, service_s=2.0) for i in range(40)]
    assert not judge(run_of(fast)).valid


def test_answers_may_be_shorter_than_a_maximum() -> None:
    shorter = changed(constant(), lambda i: True, asked_output_tokens=30, asked_exact=False)
    assert judge(run_of(shorter)).valid
    longer = changed(constant(), lambda i: True, asked_output_tokens=10, asked_exact=False)
    (reason,) = judge(run_of(longer)).reasons
    assert "answer of 20 for at most 10" in reason


def burst(count: int, each_s: float, took_s: float, *, at_s: float = 0.0) -> list[RequestRecord]:
    return [
        record_at(i, at_s, delay_s=each_s * (i + 1), service_s=took_s * (i + 1) / count - each_s * (i + 1))
        for i in range(count)
    ]


def test_a_burst_may_take_its_own_time_to_be_sent() -> None:
    """500 requests, sent within 50 ms: little if they are answered within 9 s, much within half a
    second."""
    schedule = {"kind": "burst", "size": 500}
    assert judge(run_of(burst(500, 0.0001, 9.0), schedule)).reasons == ()
    (late,) = judge(run_of(burst(500, 0.0001, 0.5), schedule)).reasons
    assert "requests were sent more than 5 ms late, or 1% of the time that its burst took" in late
    slow = [replace(record, index=500) for record in burst(500, 0.00001, 90.0, at_s=100.0)]
    (late,) = judge(run_of([*burst(500, 0.0001, 0.5), *slow], schedule)).reasons
    assert "of 1000 requests" in late


def test_requests_that_failed_do_not_lengthen_a_burst() -> None:
    records = burst(500, 0.0001, 0.5)
    records[0] = replace(records[0], error="timeout: none", ended_s=600.0, chunks=())
    assert any("keep its schedule" in reason for reason in judge(run_of(records, {"kind": "burst"})).reasons)


def test_a_template_adds_a_few_tokens_to_a_prompt() -> None:
    assert judge(run_of(changed(constant(), lambda i: True, prompt_tokens=105))).valid
    assert judge(run_of(changed(constant(), lambda i: True, prompt_tokens=7, asked_prompt_tokens=5))).valid


def test_prompts_meant_to_share_a_prefix_may_hit_the_cache() -> None:
    assert judge(run_of(changed(constant(), lambda i: True, cached_tokens=64, group="a"))).valid
    assert judge(run_of(changed(constant(), lambda i: True, cached_tokens=64, session="a"))).valid


def samples(**last: float) -> tuple[EngineSample, ...]:
    begin = {"generation_tokens": 1000.0, "prefix_cache_queries": 500.0, "prefix_cache_hits": 100.0}
    return EngineSample(-0.1, begin), EngineSample(100.0, {**begin, **last})


def test_engine_counters_are_trusted() -> None:
    good = constant()
    right = samples(generation_tokens=1000.0 + 200 * TOKENS + 2)
    assert judge(run_of(good, samples=right)).valid
    (reason,) = judge(run_of(good, samples=samples(generation_tokens=1000.0 + 300 * TOKENS))).reasons
    assert "the engine generated 6000 tokens during the run, and the answers have 4000" in reason
    # Not if requests failed, samples do not cover the run, or the engine restarted.
    failed = changed(good, lambda i: i == 3, error="it broke")
    assert len(judge(run_of(failed, samples=samples(generation_tokens=7000.0))).reasons) == 1
    assert judge(run_of(good, samples=(right[0], EngineSample(5.0, {"generation_tokens": 9000.0})))).valid
    assert judge(run_of(good, samples=(EngineSample(3.0, {"generation_tokens": 2000.0}), right[1]))).valid
    assert judge(run_of(good, samples=samples(generation_tokens=3.0))).valid
    assert judge(run_of(good, samples=right[:1])).valid


def test_cache_hits_are_read_from_the_engine_if_answers_lack_them() -> None:
    hits = samples(
        generation_tokens=1000.0 + 200 * TOKENS, prefix_cache_queries=20_500.0, prefix_cache_hits=5_100.0
    )
    silent = changed(constant(), lambda i: True, cached_tokens=None)
    (reason,) = judge(run_of(silent, samples=hits)).reasons
    assert "25.0% of the prompts' tokens came from a prefix cache" in reason
    assert judge(run_of(constant(), samples=hits)).valid


def test_all_at_once_is_not_over_time() -> None:
    bunched = [replace(record_at(i, i / 10, service_s=30.0), sent_s=20.0) for i in EVERY]
    found = judge(
        run_of(
            [replace(each, chunks=(Chunk(31.0, 20),), first_byte_s=31.0, ended_s=31.0) for each in bunched]
        )
    )
    assert any("all 200 requests were sent at once, and not over 19.9 s" in each for each in found.reasons)
    assert any("could not keep its schedule" in each for each in found.reasons)


def test_a_client_that_cannot_keep_up_sends_at_a_lower_rate() -> None:
    records = [record_at(i, i / 10, delay_s=i * 0.01) for i in EVERY]
    reasons = judge(run_of(records)).reasons
    assert any("requests were sent at 9.091/s, and 10/s were due" in each for each in reasons)


def test_unrequested_bursts_are_detected() -> None:
    # Sent every second in groups of ten, although due evenly: late by at most a second.
    heaps = [record_at(i, i / 10, delay_s=0.9 - i % 10 / 10) for i in range(500)]
    reasons = judge(run_of(heaps)).reasons
    assert any("other bursts than they were due" in each for each in reasons)
    # And the other way round.
    due_s = poisson(2000, 3, rate_per_s=100.0)
    even = [
        record_at(i, at_s, delay_s=1.0 + i / 100.0 - at_s, service_s=0.01) for i, at_s in enumerate(due_s)
    ]
    reasons = judge(run_of(even, {"kind": "poisson", "rate_per_s": 100.0})).reasons
    assert any("other bursts than they were due" in each for each in reasons)


@pytest.mark.heavy
@pytest.mark.parametrize("rate_per_s", [5.0, 33.0, 50.0, 200.0, 1000.0])
def test_random_lateness_is_not_a_burst(rate_per_s: float) -> None:
    draw = random.Random(1)
    due_s = {
        "constant": [i / rate_per_s for i in range(2000)],
        "poisson": poisson(2000, 4, rate_per_s),
    }
    for kind, times_s in due_s.items():
        # The p99 of the delays is 4.6 ms.
        records = [
            record_at(i, at_s, delay_s=draw.expovariate(1000), service_s=0.3)
            for i, at_s in enumerate(times_s)
        ]
        assert judge(run_of(records, {"kind": kind, "rate_per_s": rate_per_s})).reasons == ()


def heavy(index: int) -> float:
    """5 % of the answers take forty times as long."""
    return 2.0 if index % 20 == 7 else 0.05


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(10))
def test_a_server_that_keeps_up_does_not_fall_behind(seed: int) -> None:
    schedule = {"kind": "poisson", "rate_per_s": RATE_PER_S}
    for count in (100, 300, 3000):
        due_s = poisson(count, seed)
        assert judge(run_of(served(due_s, 1000, heavy), schedule)).reasons == ()
        # Four fifths busy: queues come and go.
        assert judge(run_of(served(due_s, 10, lambda _: 0.8), schedule)).reasons == ()


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(10))
def test_a_server_that_falls_behind_is_found(seed: int) -> None:
    schedule = {"kind": "poisson", "rate_per_s": RATE_PER_S}
    for count, share in ((300, 1.6), (3000, 1.2)):
        (reason,) = judge(run_of(served(poisson(count, seed), 10, lambda _, s=share: s), schedule)).reasons  # type: ignore[misc]
        assert reason.startswith("the answers fell behind")


def test_a_queue_that_fills_is_not_one_that_grows() -> None:
    # All in flight at once for the whole run: too short to judge.
    assert judge(run_of([record_at(i, i / 10, service_s=30.0) for i in range(100)])).valid


def test_an_error_is_reported_in_few_words() -> None:
    (reason,) = judge(run_of(changed(constant(), lambda i: i < 3, error="x" * 5000))).reasons
    assert len(reason) < 300


def test_the_schedule_delay_is_always_reported() -> None:
    few, many = judge(run_of(constant(40))), judge(GOOD["poisson"])
    assert (few.schedule_delay_p99_s, few.schedule_delay_max_s) == (None, pytest.approx(0.0005))
    assert few.notes == ("schedule delay: at most 0.5 ms; a p99 needs 1,000 requests, and 40 were sent",)
    assert many.schedule_delay_p99_s == pytest.approx(0.0005)
    assert many.notes == ("schedule delay: p99 0.5 ms, at most 0.5 ms",)


def test_session_turns_are_sent_as_soon_as_possible() -> None:
    # Each turn waits for the answer before it, so the rate is that of the answers.
    turns = [replace(record_at(i, i * 1.2), session="a") for i in range(100)]
    assert judge(run_of(turns)).valid
