"""The verdict on a run: VALID, or INVALID with every reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.bench.answer_checks import ANSWER_CHECKS
from forebay.bench.records import LoadRun, RequestRecord
from forebay.bench.statistics import percentile, suffices

MAX_LATE_S = 0.005
"""A request sent later is the client's fault, not the server's."""
MAX_LATE_OF_TTFT = 0.01
"""A delay below this share of the median service time to first token changes no figure."""
MAX_LATE_OF_BURST = 0.01
"""Requests due at the same moment are sent one after the other."""
MAX_LATE_SHARE = 0.01
"""If at most this share of requests is late, the p99 of the delay is within the bound."""
MAX_RATE_ERROR = 0.01
"""Between the rates sent and due; repeats differ by as much."""
MAX_MOVED = 0.05
"""Between the rates due and requested."""
MAX_BURST_ERROR = 0.1
"""Between the indexes of dispersion sent and due, relative to the larger of the latter and 1."""
MIN_WINDOWS = 100
WINDOW_REQUESTS = 2.5
MIN_WINDOW_S = 0.05
"""Windows for the index of dispersion: short, because bursts within one are missed.

Not a multiple of the gap between requests, because even bursts would look constant.
"""
MAX_BEHIND = 0.05
"""How much faster than answers requests may be sent."""
MIN_REQUESTS = 100
MIN_SERVICE_TIMES = 5.0
"""With fewer, a growing queue and a filling one look alike."""
NOISE = 4.0
"""Standard deviations by which the number in flight may grow by chance."""
STEADY = ("constant", "gamma", "poisson")
"""Schedules with one rate all the time."""


def _was_on_time(run: LoadRun) -> str | None:
    sent = [record for record in run.records if record.sent_s is not None]
    waits_s = [
        record.chunks[0].at_s - (record.sent_s or 0.0) for record in sent if record.answered and record.chunks
    ]
    bound_s = MAX_LATE_S
    if waits_s:
        bound_s = max(bound_s, MAX_LATE_OF_TTFT * percentile(sorted(waits_s), 50))
    spans_s = _burst_spans_s(sent)
    late = sum(
        (record.sent_s or 0.0) - record.due_s > max(bound_s, MAX_LATE_OF_BURST * spans_s.get(record.due_s, 0))
        for record in sent
    )
    if late <= MAX_LATE_SHARE * len(sent):
        return None
    of_burst = f", or {MAX_LATE_OF_BURST:.0%} of the time that its burst took" if spans_s else ""
    return (
        f"the client could not keep its schedule: {late} of {len(sent)} requests were sent more than "
        f"{bound_s * 1000:.3g} ms late{of_burst}, and at most {MAX_LATE_SHARE:.0%} may be"
    )


def _burst_spans_s(sent: Sequence[RequestRecord]) -> dict[float, float]:
    bursts: dict[float, list[RequestRecord]] = {}
    for record in sent:
        bursts.setdefault(record.due_s, []).append(record)
    return {
        due_s: max((record.ended_s - due_s for record in own if record.answered), default=0.0)
        for due_s, own in bursts.items()
        if len(own) > 1
    }


def _was_due_as_asked(run: LoadRun) -> str | None:
    rate_per_s = _schedule(run).get("rate_per_s")
    due_s = [record.due_s for record in run.records]
    # A part of a random schedule does not have the rate of the whole, which is scaled to it.
    if not _is_steady(run) or rate_per_s is None or len(due_s) < MIN_REQUESTS or not run.complete:
        return None
    found = len(due_s) / max(due_s) if max(due_s) > 0 else math.inf
    if abs(found / rate_per_s - 1) <= MAX_MOVED:
        return None
    return f"requests were due at {found:.3g}/s, and {rate_per_s:g}/s were asked for"


def _was_sent_as_due(run: LoadRun) -> str | None:
    due_s, sent_s = _due_and_sent(run)
    # With fewer, one late request moves the rate; it is counted as late anyway.
    if len(due_s) < MIN_REQUESTS or due_s[-1] <= due_s[0]:
        return None
    if sent_s[-1] <= sent_s[0]:
        return f"all {len(sent_s)} requests were sent at once, and not over {due_s[-1] - due_s[0]:.3g} s"
    ratio = (due_s[-1] - due_s[0]) / (sent_s[-1] - sent_s[0])
    # In a short run the ends alone move the rate; those are counted as late requests.
    if abs(ratio - 1) <= MAX_RATE_ERROR + MAX_LATE_S / (due_s[-1] - due_s[0]):
        return None
    asked = (len(due_s) - 1) / (due_s[-1] - due_s[0])
    return f"requests were sent at {asked * ratio:.4g}/s, and {asked:.4g}/s were due"


def _had_its_bursts(run: LoadRun) -> str | None:
    due_s, sent_s = _due_and_sent(run)
    if len(due_s) < 2 or due_s[-1] <= due_s[0]:
        return None
    span_s = due_s[-1] - due_s[0]
    window_s = max(MIN_WINDOW_S, WINDOW_REQUESTS * span_s / len(due_s))
    if span_s / window_s < MIN_WINDOWS:
        return None
    due, sent = (_dispersion(times_s, due_s[0], span_s, window_s) for times_s in (due_s, sent_s))
    if abs(sent - due) <= MAX_BURST_ERROR * max(1.0, due):
        return None
    return (
        f"requests were sent in other bursts than they were due: their index of dispersion over "
        f"{window_s * 1000:.0f} ms is {sent:.2f}, and {due:.2f} was asked for"
    )


def _dispersion(times_s: Sequence[float], begin_s: float, span_s: float, window_s: float) -> float:
    # Half a window off: even schedules have requests due at window bounds, where rounding would decide.
    counts = [0] * (int(span_s / window_s) + 2)
    for at_s in times_s:
        place = int((at_s - begin_s) / window_s + 0.5)
        counts[min(max(place, 0), len(counts) - 1)] += 1
    counts = counts[1:-2]
    mean = sum(counts) / len(counts)
    return sum((count - mean) ** 2 for count in counts) / len(counts) / mean if mean else 0.0


def _had_its_concurrency(run: LoadRun) -> str | None:
    concurrency = _schedule(run).get("concurrency")
    if concurrency is None:
        return None
    moves = [(record.sent_s, 1) for record in run.records if record.sent_s is not None]
    moves += [(record.ended_s, -1) for record in run.records if record.sent_s is not None]
    most = now = 0
    for _, move in sorted(moves):
        now += move
        most = max(most, now)
    # There are at least that many requests, but their sessions may be too few.
    has_sessions = any(record.session is not None for record in run.records)
    wanted = concurrency if has_sessions else min(concurrency, len(run.records))
    if most >= wanted:
        return None
    return f"at most {most} requests were in flight, and {wanted} were asked for"


def _kept_up(run: LoadRun) -> str | None:
    records = sorted(
        (record for record in run.records if record.sent_s is not None), key=lambda record: record.due_s
    )
    n = len(records)
    if not _is_steady(run) or n < MIN_REQUESTS:
        return None
    sent_s = [record.sent_s or 0.0 for record in records]
    early_s = sorted(record.ended_s - (record.sent_s or 0.0) for record in records[: n // 10])
    if sent_s[-1] - sent_s[0] < MIN_SERVICE_TIMES * percentile(early_s, 50):
        return None
    ends_s = sorted(record.ended_s for record in records)
    in_flight, ended = [], 0
    for place, at_s in enumerate(sorted(sent_s)):
        while ended < n and ends_s[ended] <= at_s:
            ended += 1
        in_flight.append(place + 1 - ended)
    fifth = n // 5
    before = sum(in_flight[fifth : 2 * fifth]) / fifth
    after = sum(in_flight[-fifth:]) / fifth
    # Three fifths of the requests were sent between the middles of the two.
    behind = (after - before) / (3 * fifth)
    if behind <= MAX_BEHIND or after - before <= NOISE * math.sqrt(before):
        return None
    rate_per_s = (n - 1) / (sent_s[-1] - sent_s[0])
    return (
        f"the answers fell behind: {rate_per_s:.3g} requests/s were sent and about "
        f"{rate_per_s * (1 - behind):.3g}/s answered; {before:.0f} were in flight at first and {after:.0f} "
        f"in the end, so latencies depend on how long the run was"
    )


LOAD_CHECKS: tuple[Callable[[LoadRun], str | None], ...] = (
    _was_on_time,
    _was_due_as_asked,
    _was_sent_as_due,
    _had_its_bursts,
    _had_its_concurrency,
    _kept_up,
)


def _schedule(run: LoadRun) -> Mapping[str, Any]:
    schedule = run.asked.get("schedule")
    return schedule if isinstance(schedule, Mapping) else {}


def _is_steady(run: LoadRun) -> bool:
    return _schedule(run).get("kind") in STEADY and all(record.session is None for record in run.records)


def _due_and_sent(run: LoadRun) -> tuple[list[float], list[float]]:
    if _schedule(run).get("concurrency") is not None:
        return [], []
    records = [record for record in run.records if record.sent_s is not None]
    return sorted(record.due_s for record in records), sorted(record.sent_s or 0.0 for record in records)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reasons`: empty if the run is valid."""

    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    schedule_delay_p99_s: float | None
    schedule_delay_max_s: float | None

    @property
    def valid(self) -> bool:
        return not self.reasons

    @property
    def word(self) -> str:
        return "VALID" if self.valid else "INVALID"


def judge(run: LoadRun) -> Verdict:
    delays_s = sorted(record.sent_s - record.due_s for record in run.records if record.sent_s is not None)
    p99_s = percentile(delays_s, 99) if suffices(len(delays_s), 99) else None
    found = [check(run) for check in (*ANSWER_CHECKS, *LOAD_CHECKS)]
    return Verdict(
        reasons=tuple(reason for reason in found if reason is not None),
        notes=tuple(_notes(delays_s, p99_s)),
        schedule_delay_p99_s=p99_s,
        schedule_delay_max_s=delays_s[-1] if delays_s else None,
    )


def _notes(delays_s: Sequence[float], p99_s: float | None) -> list[str]:
    if not delays_s:
        return []
    most = f"at most {delays_s[-1] * 1000:.3g} ms"
    if p99_s is None:
        return [f"schedule delay: {most}; a p99 needs 1,000 requests, and {len(delays_s)} were sent"]
    return [f"schedule delay: p99 {p99_s * 1000:.3g} ms, {most}"]
