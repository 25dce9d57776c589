"""Terminal output while a pipeline runs, and at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from forebay.cli.output import print_line, shows_text, write_json
from forebay.connectors.event_time import SUSPECT_TIMES
from forebay.engine.prices import cost_text, from_pico
from forebay.fleet.autoscale.meter import TopicBacklog
from forebay.pipeline.snapshot import Scaling, Snapshot, Throughput, lost_cause, span
from forebay.untrusted_text import counted, replace_controls

PLAIN_EVERY_S = 30.0
QUIET_S = 5.0
OLD_S = 15.0
ENDING = ("(task is closing)", "(tasks not ready)", "checkpoint request for unknown task")
"""Errors of checkpoints that were in progress when a task ended, which happens at the end of each job."""
UNREADABLE = "the followed folder, or one in it, could not be read; Flink's log names it"
SHOWN_CAUSES = 3
TOP_KEYS = 20
GOES_ON_S = 10.0
"""If a job still takes events this long after such an error, it is not ending."""


STOP_AND_FIX = "stop with Ctrl-C, fix the cause, and read them again with `source: {type: dead_letters, …}`"


class LiveLine:
    """One line that is redrawn on a terminal; elsewhere, a new line every 30 seconds.

    Failures that the run recovers from are printed as permanent lines. `one_each`: each event gives one
    result; otherwise the line counts the records that were read, and the model's answers. `why_lost` is
    called with the cause of dead letters if there is nothing else, and returns more about it; `why_unread`
    if a followed folder cannot be read.
    """

    def __init__(
        self,
        console: Console,
        *,
        one_each: bool = True,
        why_lost: Callable[[str], str] = str,
        why_unread: Callable[[], str] = str,
    ) -> None:
        self._console = console
        self._one_each = one_each
        self._why_lost = why_lost
        self._why_unread = why_unread
        self._lost_cause = ""
        self._live: Live | None = None
        self.last: Snapshot | None = None
        self._answered_s = self._read_s = 0.0
        self._printed_s: float | None = None
        self._unreported: Snapshot | None = None
        self.throughput = Throughput()

    def __enter__(self) -> LiveLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, now: Snapshot) -> None:
        """`elapsed_s` may go back only when the job starts after the wait for an engine."""
        before = self.last or Snapshot(now.elapsed_s, now.state)
        if now.elapsed_s < before.elapsed_s:
            self._answered_s, self._read_s, self._printed_s = now.elapsed_s, now.elapsed_s, None
        if (now.results, now.dead_letters) != (before.results, before.dead_letters) or not now.in_flight:
            self._answered_s = now.elapsed_s
        if (now.read, now.accepted) != (before.read, before.accepted):
            self._read_s = now.elapsed_s
        if now.restarts > before.restarts:
            self._print(f"Flink restarts the job: {now.failure}")
        if now.engine_failure and now.engine_failure != before.engine_failure:
            self._print(now.engine_failure)
        if now.scaling is not None and now.scaling.wanted != _wanted(before.scaling):
            self._print(f"replicas {_wanted(before.scaling)} → {now.scaling.wanted}: {now.scaling.reason}")
        if now.resuming != before.resuming:
            self._print(now.resuming)
        if now.checkpoint_failure != before.checkpoint_failure:
            self._unreported = now if now.checkpoint_failure else None
        if self._unreported is not None and not _may_end(now, self._unreported):
            self._unreported = None
            self._print(f"a checkpoint failed: {now.checkpoint_failure}")
        if now.store_failure != before.store_failure:
            self._print(
                f"{now.store_failure}. The stream is paused until it is available"
                if now.store_failure
                else "the object store is available again"
            )
        if now.suspect_times and not before.suspect_times:
            self._print(f"an event has a time in 1970 or 1900: {SUSPECT_TIMES}")
        if now.failed_commits > before.failed_commits:
            self._print(_failed_commits(now))
        for gap in now.gaps[len(before.gaps) :]:
            self._print(f"Kafka no longer has the next record, continuing after it: {gap}")
        if now.replaced_files > before.replaced_files:
            self._print(_replaced_files(now.replaced_files - before.replaced_files))
        if now.unreadable_folders and not before.unreadable_folders:
            self._print(f"nothing new is read: {self._why_unread() or UNREADABLE}")
        if before.unreadable_folders and not now.unreadable_folders and now.state == "RUNNING":
            self._print("the followed folder can be read again")
        self._warn_of_loss(now)
        self.last = now
        self.throughput.add(now)
        limit = self.throughput.limit(now)
        silent = silence(now, now.elapsed_s - self._answered_s, now.elapsed_s - self._read_s)
        self._draw(now, line_of(now, self.throughput, one_each=self._one_each, limit=limit, silent=silent))

    def _warn_of_loss(self, now: Snapshot) -> None:
        cause = lost_cause(now, one_each=self._one_each)
        if cause and cause != self._lost_cause:
            lost = f"all of the last {now.dead_letters} records became dead letters: {self._why_lost(cause)}"
            self._print(f"warning: {lost}; {STOP_AND_FIX}")
        self._lost_cause = "" if now.results else cause or self._lost_cause

    def _draw(self, now: Snapshot, text: str) -> None:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            if self._live is None:
                self._live = Live(console=self._console, transient=True, auto_refresh=False)
                self._live.start()
            self._live.update(Text(replace_controls(text)), refresh=True)
        elif self._printed_s is None or now.elapsed_s - self._printed_s >= PLAIN_EVERY_S:
            self._printed_s = now.elapsed_s
            self._print(text)

    def _print(self, text: str) -> None:
        print_line(self._console, text)


def _may_end(now: Snapshot, failed: Snapshot) -> bool:
    """Whether a checkpoint that failed at `failed` may have failed because the job is ending."""
    ends = any(text in failed.checkpoint_failure for text in ENDING)
    goes_on = now.accepted > failed.accepted and now.elapsed_s - failed.elapsed_s >= GOES_ON_S
    return ends and not (goes_on and now.state == "RUNNING")


def line_of(
    now: Snapshot, over: Throughput, *, one_each: bool = True, limit: str = "", silent: str = ""
) -> str:
    """`one_each`: as for `LiveLine`; `limit`: what limits the throughput; `silent`: what has stopped."""
    counts = [f"in {now.accepted}", f"out {now.results}", *_share(now, over)]
    if not one_each:
        rate = "" if over.read_per_s is None else f" ({over.read_per_s:.0f}/s)"
        counts = [
            f"{counted(now.read, 'record')} read{rate}",
            *_share(now, over),
            counted(now.results, "answer"),
        ]
    fallbacks = 0 if now.kv_transfers is None else now.kv_transfers.fallbacks
    happened = (
        ("failed:", failures_of(now, SHOWN_CAUSES)),
        ("cut", now.cut_answers),
        ("retries", now.retries),
        ("prefill fallbacks", fallbacks),
        ("restarts", now.restarts),
        ("resumed", len(now.resumes)),
        ("failed commits", now.failed_commits),
        ("skipped", now.skipped_records if now.gaps else ""),
        ("engine restarts", now.engine_restarts),
    )
    parts = [
        f"{now.elapsed_s:5.0f} s {now.state.lower()}",
        *counts,
        f"in flight {now.in_flight}",
        *_waiting(now.backlog),
        *_replicas(now.scaling),
        f"event p50 {_time(now.event_p50_s)} p99 {_time(now.event_p99_s)}",
        f"{over.tokens_per_s or 0.0:.0f} tokens/s",
        *([] if now.cost_pico is None else [f"cost {cost_text(now.cost_pico)}"]),
        f"dead letters {now.dead_letters}",
        *(f"{name} {value}" for name, value in happened if value not in (0, "")),
        limit,
        silent,
    ]
    return " · ".join(filter(None, parts))


def silence(now: Snapshot, answered_s: float, read_s: float) -> str:
    """What has stopped for `QUIET_S`, given the times since the last answer and since something was read; an
    empty text if nothing has."""
    if now.state != "RUNNING":
        return ""
    if now.in_flight and answered_s >= QUIET_S:
        return f"no answer for {answered_s:.0f} s"
    return f"no new event for {read_s:.0f} s" if not now.in_flight and read_s >= QUIET_S else ""


def _share(now: Snapshot, over: Throughput) -> list[str]:
    """The share of the source that was read, and the time until it is."""
    if now.read_share is None or now.state != "RUNNING":
        return []
    left_s = over.source_left_s
    left = f", {span(left_s)} left" if left_s is not None and now.read_share < 1 else ""
    return [f"{now.read_share:.0%} of the source{left}"]


def failures_of(now: Snapshot, most: int | None = None) -> str:
    causes = Counter(now.failed).most_common(most)
    more = [] if len(causes) == len(now.failed) else ["…"]
    return ", ".join([*(f"{cause} {number}" for cause, number in causes), *more])


def report(
    last: Snapshot, *, one_each: bool, json: str | None, console: Console | None, limited: str = ""
) -> None:
    """Write the `--json` document and print a summary, unless the document goes to standard output."""
    write_json(json, document_of(last, one_each=one_each))
    if console is None or not shows_text(json):
        return
    tokens = last.prompt_tokens + last.completion_tokens
    events = f"{counted(last.accepted, 'event')}, " if one_each else ""
    # Flink counts what was read from 0 after a restart.
    if last.read and not (one_each or last.restarts or last.resumes):
        events = f"{counted(last.read, 'record')} read, "
    cost = "" if last.cost_pico is None else f", cost {cost_text(last.cost_pico)}"
    outcome = (
        f"{counted(last.results, 'result')}, {counted(last.dead_letters, 'dead letter')}, "
        f"{counted(tokens, 'token')}{cost}{'; ' + limited if limited else ''}"
    )
    print_line(console, f"{last.state.lower()} after {last.elapsed_s:.0f} s: {events}{outcome}")
    if last.suspect_times:
        what = counted(last.suspect_times, "event has a time", "events have times")
        print_line(console, f"{what} in 1970 or 1900: {SUSPECT_TIMES}")
    if last.failed:
        print_line(console, f"failed, by cause: {failures_of(last)}")
    if last.cut_answers:
        cut = f"{counted(last.cut_answers, 'answer was', 'answers were')} cut at max_tokens"
        fix = "raise sampling.max_tokens if answers must be complete"
        print_line(console, f"{cut} (finish_reason length): {fix}")
    if last.failed_commits:
        print_line(console, _failed_commits(last))
    if last.gaps:
        lost = f"at most {counted(last.skipped_records, 'record was', 'records were')} deleted from Kafka"
        places = f"at {counted(len(last.gaps), 'place')}; `gaps` of --json lists them"
        print_line(console, f"{lost} before being read, {places}")


def document_of(last: Snapshot, *, one_each: bool) -> dict[str, Any]:
    document = asdict(last)
    cost_pico, by_key = document.pop("cost_pico"), Counter(document.pop("cost_by_key"))
    if not one_each:
        document["accepted"] = None
    document["cost"] = None
    if cost_pico is not None:
        top = by_key.most_common(TOP_KEYS)
        document["cost"] = {
            "total": from_pico(cost_pico),
            "by_key": {key: from_pico(pico) for key, pico in top},
            "other_keys": from_pico(cost_pico - sum(pico for _, pico in top)),
        }
    return document


def _failed_commits(now: Snapshot) -> str:
    return (
        f"{now.failed_commits} of this run's transactions could not be committed because Kafka had aborted "
        f"them: their results may be lost. Set transaction_timeout_s above the longest time between two "
        f"checkpoints, including pauses"
    )


def _replaced_files(count: int) -> str:
    files = counted(count, "file in the followed folder was", "files in the followed folder were")
    where = "from the start, with positions such as NAME@2:1; Flink's log has the names"
    return f"{files} replaced and will be read {where}"


def _wanted(scaling: Scaling | None) -> int:
    return 0 if scaling is None else scaling.wanted


def _replicas(scaling: Scaling | None) -> list[str]:
    if scaling is None:
        return []
    both = (("starting", scaling.starting), ("draining", scaling.draining))
    others = [f"{count} {name}" for name, count in both if count]
    return [f"replicas {scaling.ready}" + (f" ({', '.join(others)})" if others else "")]


def _waiting(backlog: TopicBacklog | None) -> list[str]:
    if backlog is None:
        return []
    text = f"waiting {backlog.records}"
    if backlog.records and backlog.prompt_tokens is not None and backlog.completion_tokens is not None:
        count = backlog.prompt_tokens + backlog.completion_tokens
        thousands = f"{count / 1000:.0f}k" if count < 1_000_000 else f"{count / 1e6:.1f}M"
        text += f" (~{count if count < 1000 else thousands} tokens)"
    return [text if backlog.age_s < OLD_S else f"{text}, as of {backlog.age_s:.0f} s ago"]


def _time(seconds: float) -> str:
    if seconds <= 0:
        return "–"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
