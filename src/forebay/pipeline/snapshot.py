"""Snapshots of a running pipeline, its throughput, and the estimated cost of its backlog."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from forebay.fleet.autoscale.topic_queue import TopicBacklog


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a job's records so far: completed or failed `records`, and their tokens."""

    records: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


def estimate(records: int, spent: Spent, age_s: float = 0.0) -> TopicBacklog:
    """Estimate the backlog of `records` from the mean cost so far, rounded.

    tokens = records × tokens spent ÷ records spent, for prompts and for completions. Failed records count
    with their cost, because some records in the backlog will fail too.
    """
    if spent.records <= 0:
        return TopicBacklog(records, None, None, age_s)
    return TopicBacklog(
        records,
        round(records * spent.prompt_tokens / spent.records),
        round(records * spent.completion_tokens / spent.records),
        age_s,
    )


class SpentInAll:
    """The cost of records if requests do not correspond to single records: all tokens, over all records read.
    Both are summed over restarts of the job, which repeat reads and requests.
    """

    def __init__(self) -> None:
        self._before = self._sum = Spent()

    def add(self, read: int, prompt_tokens: int, completion_tokens: int) -> Spent:
        """Takes records read over all starts and tokens since the last start; zero before the first answer,
        when records have cost nothing yet.
        """
        before, total = self._before, self._sum
        again = prompt_tokens < before.prompt_tokens or completion_tokens < before.completion_tokens
        since = Spent() if again else before
        self._before = Spent(read, prompt_tokens, completion_tokens)
        self._sum = Spent(
            read,
            total.prompt_tokens + prompt_tokens - since.prompt_tokens,
            total.completion_tokens + completion_tokens - since.completion_tokens,
        )
        return self._sum if self._sum.prompt_tokens else Spent()


@dataclass(frozen=True, slots=True)
class Scaling:
    ready: int = 0
    starting: int = 0
    draining: int = 0
    wanted: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KvTransfers:
    """Answers of a fleet with prefill servers: decoded with a transferred KV cache, or prefilled by the
    decoding server, by the reason in `forebay.records.KvHandover`.
    """

    transferred: int = 0
    no_server: int = 0
    prefill_failed: int = 0
    no_kv_cache: int = 0
    decode_failed: int = 0

    @property
    def fallbacks(self) -> int:
        return self.no_server + self.prefill_failed + self.no_kv_cache + self.decode_failed


WAITING = "WAITING FOR THE ENGINE"
AWAITS_KAFKA = "WAITING FOR KAFKA"
RESUMING = "RESUMING"
INTERRUPTED = "INTERRUPTED"
FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A running pipeline at one moment; latencies in seconds over the last 30 s.

    Counts are the operator's since its last start. `accepted` counts incoming events plus the `restored` ones
    from its checkpoint; if each event gives one result or dead letter, it is at least results, dead letters
    and `in_flight` together. At the end of a run, counts are of its output, and `accepted` is the number of
    events that got a result or dead letter in this run.

    - `state`: Flink's, or `WAITING` or `AWAITS_KAFKA` before the job starts (reason in `engine_failure`),
      `RESUMING`, `INTERRUPTED` or `FAILED`. `elapsed_s` restarts from 0 when the job starts.
    - `oldest_read_ms`: wall-clock read time of the oldest unanswered event; in the year 9999 if there is
      none, 0 if unknown. `suspect_times`: events with times in 1970 or 1900.
    - `failure`: the cause of the last of `restarts` by Flink in this run. `resumes`: the causes of this run's
      own restarts of Flink, in order; `resuming`: the reaction to the last one.
    - `engine_restarts`: how often a local replica ended unexpectedly or was not healthy in time, and was
      restarted. `engine_failure`: the last message about replicas, or about a failed start or stop.
    - `checkpoint_failure`, `store_failure`: why the last checkpoint failed, and why the state's object store
      cannot be used; empty if they work. `failed_commits`: transactions of this run that Kafka ended before
      the commit; their results or dead letters may be lost.
    - `gaps`: where Kafka had deleted unread records that the run skipped, `skipped_records` an upper bound of
      their number, without recreated topics. `replaced_files`: files of a followed folder that were replaced
      and read as new since the job's last start.
    - `backlog`: records waiting in a Kafka source's topics, counted every few seconds; None before that, and
      for other sources. `scaling`: None unless the run starts and stops replicas.
    - `kv_transfers`: None before the first answer, and without prefill servers. `cut_answers`: results cut at
      `max_tokens`, with the finish reason `length`. `failed`: dead letters, and calls that an application
      continued without, by cause.
    """

    elapsed_s: float
    state: str
    accepted: int = 0
    restored: int = 0
    results: int = 0
    dead_letters: int = 0
    in_flight: int = 0
    pending: int = 0
    oldest_read_ms: int = 0
    retries: int = 0
    restored_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    event_p50_s: float = 0.0
    event_p99_s: float = 0.0
    restarts: int = 0
    failure: str = ""
    engine_restarts: int = 0
    engine_failure: str = ""
    resumes: tuple[str, ...] = ()
    resuming: str = ""
    checkpoint_failure: str = ""
    failed_commits: int = 0
    gaps: tuple[str, ...] = ()
    skipped_records: int = 0
    replaced_files: int = 0
    backlog: TopicBacklog | None = None
    scaling: Scaling | None = None
    store_failure: str = ""
    kv_transfers: KvTransfers | None = None
    suspect_times: int = 0
    cut_answers: int = 0
    failed: dict[str, int] = field(default_factory=dict)


OVER_S = 30.0
"""Window of a rate."""
LEAST_S = 2.0
"""Minimum time for a rate."""
MOSTLY = 0.5
"""The engine limited a run if events waited for it for more than this share of the time."""


class Throughput:
    """Measures throughput from each snapshot, in order. Events wait for the engine while `capacity` calls are
    in flight.
    """

    def __init__(self) -> None:
        self._done: deque[tuple[float, int]] = deque()
        self._waited_s = self._passed_s = 0.0

    def add(self, now: Snapshot) -> None:
        done = now.results + now.dead_letters
        if self._done:
            last_s, last = self._done[-1]
            if now.elapsed_s < last_s or done < last:
                # The job has started or restarted, and counts from zero.
                self._done.clear()
            else:
                self._passed_s += now.elapsed_s - last_s
                self._waited_s += now.elapsed_s - last_s if now.pending else 0.0
        self._done.append((now.elapsed_s, done))
        while now.elapsed_s - self._done[0][0] > OVER_S:
            self._done.popleft()

    @property
    def per_s(self) -> float | None:
        """Events completed per second over the last 30 s; None if there is too little data."""
        if not self._done:
            return None
        (since_s, before), (now_s, done) = self._done[0], self._done[-1]
        return (done - before) / (now_s - since_s) if now_s - since_s >= LEAST_S else None

    @property
    def engine_limited(self) -> bool:
        return self._waited_s > MOSTLY * self._passed_s

    def left_s(self, now: Snapshot) -> float | None:
        """Seconds until the backlog is done at the current rate; None if unknown."""
        if now.backlog is None or not self.per_s:
            return None
        return (now.backlog.records + now.pending + now.in_flight) / self.per_s

    def limit(self, now: Snapshot) -> str:
        """Describe the current limit; empty if nothing waits for the engine, or there is too little data."""
        if not now.pending or self.per_s is None:
            return ""
        words = f"limited by the engine: {_rate(self.per_s)}"
        left_s = self.left_s(now)
        return words if left_s is None else f"{words}, backlog done in {_span(left_s)}"

    def limited(self, last: Snapshot) -> str:
        if not self.engine_limited or last.elapsed_s <= 0:
            return ""
        return f"limited by the engine: {_rate((last.results + last.dead_letters) / last.elapsed_s)}"


def _rate(per_s: float) -> str:
    return f"{per_s:.0f} events/s" if per_s >= 10 else f"{per_s:.1f} events/s"


def _span(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
