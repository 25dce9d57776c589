"""A running pipeline at one moment: what a run tells whoever watches it, and how much work waits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from forebay.autoscale.topic_queue import TopicBacklog


@dataclass(frozen=True, slots=True)
class Spent:
    """What a job's records have cost so far: `records` that were answered or given up, and their tokens."""

    records: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


def estimate(records: int, spent: Spent, age_s: float = 0.0) -> TopicBacklog:
    """The backlog of `records`: as many tokens each as the mean of what is `spent`, rounded.

    tokens = records × tokens spent ÷ records spent, for prompts and for completions. Records that were given
    up count with what they cost, as some of those that wait will be given up too. What waits is taken to be
    like what came before it.
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
    """What records have cost where no question is about a single one: all tokens, over all records that the
    source has read. Both are added up over restarts of the job, which reads records again and asks again."""

    def __init__(self) -> None:
        self._before = self._sum = Spent()

    def add(self, read: int, prompt_tokens: int, completion_tokens: int) -> Spent:
        """Given the records read over all starts, and the tokens since the last one. Nothing before the first
        answer: what was read has cost nothing yet."""
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
    """Replicas that a run starts and stops: how many serve, start, drain and are wanted, and why that number
    was decided."""

    ready: int = 0
    starting: int = 0
    draining: int = 0
    wanted: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KvTransfers:
    """Answers where there are servers for prefill: decoded with the KV cache that one handed over, and
    prefilled where they were decoded, by the reason, as `forebay.records.KvHandover` has it."""

    transferred: int = 0
    no_server: int = 0
    prefill_failed: int = 0
    no_kv_cache: int = 0
    decode_failed: int = 0

    @property
    def fallbacks(self) -> int:
        """Those that were prefilled where they were decoded."""
        return self.no_server + self.prefill_failed + self.no_kv_cache + self.decode_failed


WAITING = "WAITING FOR THE ENGINE"
AWAITS_KAFKA = "WAITING FOR KAFKA"
RESUMING = "RESUMING"
INTERRUPTED = "INTERRUPTED"
FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A running pipeline at one moment; latencies in seconds over the last half minute.

    Counts are those of the operator since its last start, where `accepted` counts the events that came in and
    the `restored` ones that it found in its checkpoint: at least as many as came out and are in flight, where
    each gives one result or dead letter. At the end of a run they are of what it wrote, and `accepted` is
    then the number of events that got their result or dead letter in this run.
    `state` is Flink's word, or `WAITING` or `AWAITS_KAFKA` before the job starts, with the reason in
    `engine_failure`; `elapsed_s` then counts the wait, and from the job's start on it counts anew. `RESUMING`
    is a job that is started again, `INTERRUPTED` and `FAILED` are how a run may end.
    `oldest_read_ms` is the wall-clock time at which the oldest event that awaits its answer was read: of the
    year 9999 where none does, 0 where that is not known.
    `failure` is the cause of the last of `restarts` that Flink made in this run. `engine_restarts` is how
    often a local replica ended by itself or was not healthy in time: it is started again. `engine_failure` is
    what was last said of them, or of what could not be done to start and stop them. `resumes` are the
    causes for which the run started Flink anew by itself, one text each time, in order; what it does about
    the last is in `resuming`. `checkpoint_failure` is why the last checkpoint failed, empty where it
    completed. `failed_commits` is how many transactions with results or dead letters could not be committed
    in this run: Kafka had ended them, and what they held may be lost. `gaps` are the places at which Kafka
    had deleted records that were not read and the run went on, one text each; `skipped_records` is how many
    they were at most, without those of topics that were created again. `replaced_files` is how many files of
    a followed folder were replaced and read as new ones since the job's last start. `backlog` is what waits
    in the topics of a Kafka source, counted every few seconds; None before that, and for other sources.
    `scaling` is the state of the replicas if the run starts and stops them, else None. `suspect_times` counts
    events with times in 1970 or 1900. `store_failure` is why the object store that holds the state cannot be
    used now, empty if it can. `kv_transfers` is None before the first answer, and without servers for
    prefill. `cut_answers` were cut at `max_tokens`, and are results with the finish reason `length`. `failed`
    counts, by cause, dead letters and the calls that an application went on without.
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
"""The time that a rate is of."""
LEAST_S = 2.0
"""Nothing is said of a rate over less time."""
MOSTLY = 0.5
"""The engine limited a run in which events waited for it for more than this share of the time."""


class Throughput:
    """Told of each snapshot, in order. Events wait for the engine while `capacity` calls are in flight."""

    def __init__(self) -> None:
        self._done: deque[tuple[float, int]] = deque()
        self._waited_s = self._passed_s = 0.0

    def add(self, now: Snapshot) -> None:
        done = now.results + now.dead_letters
        if self._done:
            last_s, last = self._done[-1]
            if now.elapsed_s < last_s or done < last:
                # The job has started, or started anew, and counts from the beginning.
                self._done.clear()
            else:
                self._passed_s += now.elapsed_s - last_s
                self._waited_s += now.elapsed_s - last_s if now.pending else 0.0
        self._done.append((now.elapsed_s, done))
        while now.elapsed_s - self._done[0][0] > OVER_S:
            self._done.popleft()

    @property
    def per_s(self) -> float | None:
        """Events done per second, over the last half minute; None where too little is known."""
        if not self._done:
            return None
        (since_s, before), (now_s, done) = self._done[0], self._done[-1]
        return (done - before) / (now_s - since_s) if now_s - since_s >= LEAST_S else None

    @property
    def engine_limited(self) -> bool:
        """Whether events waited for the engine for most of the time until now."""
        return self._waited_s > MOSTLY * self._passed_s

    def left_s(self, now: Snapshot) -> float | None:
        """Seconds until all that waits is done, at the present rate; None where that is not known."""
        if now.backlog is None or not self.per_s:
            return None
        return (now.backlog.records + now.pending + now.in_flight) / self.per_s

    def limit(self, now: Snapshot) -> str:
        """What limits now, in words; empty where nothing waits for the engine, or too little is known."""
        if not now.pending or self.per_s is None:
            return ""
        words = f"the engine limits: {_rate(self.per_s)}"
        left_s = self.left_s(now)
        return words if left_s is None else f"{words}, what waits is done in {_span(left_s)}"

    def limited(self, last: Snapshot) -> str:
        """At the end: what limited the run, in words; empty where the engine did not."""
        if not self.engine_limited or last.elapsed_s <= 0:
            return ""
        return f"the engine limited: {_rate((last.results + last.dead_letters) / last.elapsed_s)}"


def _rate(per_s: float) -> str:
    return f"{per_s:.0f} events/s" if per_s >= 10 else f"{per_s:.1f} events/s"


def _span(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
