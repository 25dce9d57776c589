"""The verdict on a pipeline's run: VALID, or INVALID with every reason."""

from __future__ import annotations

import math
from collections.abc import Callable

from forebay.bench.resources import disturbed
from forebay.bench.statistics import percentile, suffices
from forebay.bench.stream.figures import (
    MAX_UNSURE,
    MIN_EVENTS,
    WINDOW,
    first_latency_s,
    lag_slope,
    lag_times,
    least_length_s,
    stage_s,
    stages_of,
)
from forebay.bench.stream.records import StreamRun
from forebay.bench.verdict import MAX_LATE_S, MAX_LATE_SHARE, MAX_RATE_ERROR, STEADY, Verdict

LATE_OF_LATENCY = 0.01
"""A feed delay below this share of the median latency changes no figure."""
MIN_FOR_RATE = 100


def judge_stream(run: StreamRun) -> Verdict:
    found = [check(run) for check in CHECKS]
    delays_s = feed_delays_s(run)
    p99_s = percentile(delays_s, 99) if suffices(len(delays_s), 99) else None
    return Verdict(
        reasons=tuple(reason for reason in found if reason is not None),
        notes=tuple(_notes(run, delays_s, p99_s)),
        schedule_delay_p99_s=p99_s,
        schedule_delay_max_s=delays_s[-1] if delays_s else None,
    )


def feed_delays_s(run: StreamRun) -> list[float]:
    """Sorted, for events that the feed could have written."""
    return sorted(
        event.emitted_s - event.free_s
        for event in run.events
        if event.emitted_s is not None and event.free_s is not None
    )


def _notes(run: StreamRun, delays_s: list[float], p99_s: float | None) -> list[str]:
    if not delays_s:
        return []
    most = f"at most {delays_s[-1] * 1000:.3g} ms"
    if p99_s is None:
        delay = f"schedule delay: {most}; a p99 needs 1,000 events, and {len(delays_s)} came"
    else:
        delay = f"schedule delay: p99 {p99_s * 1000:.3g} ms, {most}"
    notes = [delay, f"moments of commits are known to {run.resolution_s * 1000:.3g} ms, all others to 1 ms"]
    if run.results is not None:
        notes += _notes_of_results(run)
    if run.resent:
        notes.append(
            f"{run.resent} of {len(run.events)} events were sent before, as they are in --data: the engine's "
            "prefix cache may hold them"
        )
    too_little = too_little_for_lag(run)
    if too_little is not None and _should_be_steady(run):
        notes.append(f"whether the lag grows was not checked: {too_little}")
    if run.others_cores is None:
        notes.append("processor use of other programs is unknown: a part ended during the run")
    return notes


def _notes_of_results(run: StreamRun) -> list[str]:
    notes = []
    if not run.countable:
        notes.append(
            "the expected results are unknown: doubled results and unanswered questions are counted, lost "
            "results are not"
        )
    if run.left_open:
        notes.append(
            f"{run.left_open} of {len(run.events)} events were in windows that had not ended with the load: "
            "the results of those are not in the figures"
        )
    letters = sum(event.error is not None for event in run.events)
    if letters:
        notes.append(f"{letters} of {len(run.events)} events became dead letters, and are in no result")
    given_up = sum(each.given_up for each in run.results or ())
    if given_up:
        notes.append(f"{given_up} events are in no summary, since their calls were given up")
    return notes


def _is_whole(run: StreamRun) -> str | None:
    if run.failure is not None:
        return f"the pipeline ended before its events: {run.failure}"
    return None if run.complete else "interrupted: the figures cover the time until then"


def _has_results(run: StreamRun) -> str | None:
    if run.results is None or run.results:
        return None
    return "no results, so there is nothing to judge: send more events, or others (--seconds, --data)"


def _was_on_time(run: StreamRun) -> str | None:
    delays_s = feed_delays_s(run)
    took_s = sorted(
        event.committed_s - event.due_s for event in run.followed if event.committed_s is not None
    )
    bound_s = MAX_LATE_S
    if took_s:
        bound_s = max(bound_s, LATE_OF_LATENCY * percentile(took_s, 50))
    late = sum(delay_s > bound_s for delay_s in delays_s)
    if late <= MAX_LATE_SHARE * len(delays_s):
        return None
    return (
        f"the feed could not keep its schedule: {late} of {len(delays_s)} events were more than "
        f"{bound_s * 1000:.3g} ms late; at most {MAX_LATE_SHARE:.0%} may be"
    )


def _came_as_asked(run: StreamRun) -> str | None:
    # If the pipeline was down for a while, its events arrived after the restart.
    emitted_s = sorted(event.emitted_s for event in run.events if event.emitted_s is not None)
    if len(emitted_s) < MIN_FOR_RATE or len(emitted_s) < len(run.events) or _was_away(run):
        return None
    due_s = sorted(event.due_s for event in run.events)
    if due_s[-1] <= due_s[0] or emitted_s[-1] <= emitted_s[0]:
        return None
    asked, found = len(due_s) / (due_s[-1] - due_s[0]), len(emitted_s) / (emitted_s[-1] - emitted_s[0])
    if abs(found / asked - 1) <= MAX_RATE_ERROR:
        return None
    return f"events came at {found:.4g}/s, and were due at {asked:.4g}/s"


def _was_away(run: StreamRun) -> bool:
    return any(event.free_s is not None and event.free_s > event.due_s for event in run.events)


def _made_its_kills(run: StreamRun) -> str | None:
    if not run.complete or len(run.kills) >= run.planned_kills:
        return None
    return f"{len(run.kills)} of {run.planned_kills} kills were made; the load had ended before the others"


def _asked_the_engine(run: StreamRun) -> str | None:
    # After a kill, the journal answers what was answered before it.
    journaled = 0 if run.kills else sum(event.journaled for event in run.followed)
    if not journaled:
        return None
    return (
        f"{journaled} of {len(run.followed)} {run.noun}s were answered by the journal, without the engine; "
        "set journal=null, or give each event of --data another prompt"
    )


def _lost_none(run: StreamRun) -> str | None:
    lost = sum(event.lost for event in run.followed)
    if not run.complete or not lost:
        return None
    if run.results is not None:
        return f"{lost} of {len(run.results)} expected results are missing{_uncommitted(run)}"
    return f"{lost} of {len(run.events)} events have neither a result nor a dead letter{_uncommitted(run)}"


def _uncommitted(run: StreamRun) -> str:
    last_s = max((each.emitted_s or each.due_s for each in run.events), default=0.0)
    if not run.checkpoints or any(each.completed and each.at_s > last_s for each in run.checkpoints):
        return ""
    return (
        "; no checkpoint was complete after the last event, so they may be answered but not committed: set a "
        "longer --patience"
    )


def _counts_agree(run: StreamRun) -> str | None:
    wrong = [each for each in run.results or () if each.miscounted]
    if not wrong:
        return None
    first = wrong[0]
    return (
        f"{len(wrong)} of {len(run.results or ())} results have a wrong number of events: "
        f"{first.id} reports {first.stands_for}, expected {first.expected}"
    )


def _doubled_none(run: StreamRun) -> str | None:
    doubled = sum(event.doubled for event in run.followed)
    if doubled and run.results is not None:
        return f"{doubled} of {len(run.results)} results are in the sink more than once"
    if doubled:
        return f"{doubled} of {len(run.events)} events have more than one result or dead letter"
    if run.earlier_doubled:
        return f"{run.earlier_doubled} more results or dead letters belong to events of earlier loads"
    of = "events" if run.results is None else "windows of the events that were sent"
    return f"{run.strangers} results belong to none of the {of}" if run.strangers else None


def _should_be_steady(run: StreamRun) -> bool:
    return run.asked.get("schedule", {}).get("kind") in STEADY and not (run.kills or run.planned_kills)


def too_little_for_lag(run: StreamRun) -> str | None:
    due_s, done_s = lag_times(run)
    if len(due_s) < MIN_EVENTS:
        return (
            f"{len(due_s)} {run.noun}s are too few to judge the lag; "
            f"at least {MIN_EVENTS} are needed (--events)"
        )
    slope = lag_slope(due_s, done_s)
    length_s, least_s = due_s[-1] - due_s[0], least_length_s(due_s, done_s, slope)
    if length_s <= 0 or length_s >= least_s:
        return None
    rate_per_s = len(due_s) / length_s
    if slope is not None and slope.grows(rate_per_s):
        return None
    if slope is not None and slope.unsure(rate_per_s) > MAX_UNSURE:
        why = (
            f"since the growth of the lag is known to ±{slope.unsure(rate_per_s):.0%} of the rate, and "
            f"±{MAX_UNSURE:.0%} are needed"
        )
    else:
        why = f"since the first answers took {first_latency_s(due_s, done_s):.3g} s"
    return (
        f"{length_s:.3g} s are too short to judge the lag, {why}; "
        f"set --seconds {math.ceil(SPARE * least_s)} or more, or as many --events"
    )


SPARE = 1.1


def _is_steady(run: StreamRun) -> str | None:
    if not _should_be_steady(run):
        return None
    due_s, done_s = lag_times(run)
    slope = lag_slope(due_s, done_s)
    rate_per_s = len(due_s) / due_s[-1] if due_s and due_s[-1] > 0 else 0.0
    if slope is None or not slope.grows(rate_per_s):
        return None
    return (
        f"no steady state: the {run.noun}s that were due and not answered grew by {slope.per_s:.3g}/s (95 % "
        f"interval {slope.low:.3g} to {slope.high:.3g}), and their latency with the length of the run"
    )


def _clocks_agree(run: StreamRun) -> str | None:
    for name, (begin, end, _) in stages_of(run).items():
        if name == WINDOW:
            # With processing time, a window may close early.
            continue
        bound_s = run.resolution_s + CLOCK_S if name == "commit" else CLOCK_S
        took_s = [each for event in run.followed if (each := stage_s(event, name)) is not None]
        if took_s and min(took_s) < -bound_s:
            return (
                f"the clocks disagree: {end} was {-min(took_s) * 1000:.3g} ms before {begin}, and the clocks "
                f"are known to {bound_s * 1000:.3g} ms"
            )
    return None


CLOCK_S = 0.001
"""Error of converting monotonic times to wall-clock times."""


def _was_undisturbed(run: StreamRun) -> str | None:
    return None if run.others_cores is None else disturbed(run.others_cores, run.cores)


Check = Callable[[StreamRun], str | None]
KEPT_UP: tuple[Check, ...] = (_is_whole, _lost_none, _is_steady)
"""Checks that a pipeline fails if it is too slow for its load."""
BELIEVABLE: tuple[Check, ...] = (
    _has_results,
    _was_on_time,
    _came_as_asked,
    _doubled_none,
    _counts_agree,
    _made_its_kills,
    _asked_the_engine,
    _clocks_agree,
    _was_undisturbed,
)
CHECKS = (*KEPT_UP, *BELIEVABLE)


def doubts(run: StreamRun) -> tuple[str, ...]:
    return tuple(reason for check in BELIEVABLE if (reason := check(run)) is not None)
