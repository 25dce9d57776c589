"""One replica of a fleet: its state, its limits and its requests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forebay.engine.load import ReplicaCounters
from forebay.engine.replica import ReplicaConnection, ServedModel
from forebay.errors import EngineError, RateLimited
from forebay.fleet.cache_events import CacheWatch
from forebay.fleet.concurrency import ConcurrencyLimit, LimitTurn
from forebay.fleet.health import PATIENCE, Health, HealthRules, ReportCheck, RequestProgress, TrackedRequest
from forebay.fleet.refusals import Refusals
from forebay.fleet.replica_table import STALE_S, ReplicaTable
from forebay.records import ReplicaLoad

METRICS_ONLY_S = 30.0
NON_STREAMING = 0.99
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
"""Pauses of a replica that gets requests too fast and names no time: doubled until one succeeds."""
EXCUSED_S = 10.0
PROBES = 3
FADE = 0.1
USUAL_FADE = 0.02
PERHAPS_SLOW_S = 600.0
"""Time after a replica was given up for its silence in which it may be silent for longer."""
MOSTLY = 0.25


class Replica:
    """A replica with its connection, its models, its health, its limits and its requests in flight.

    Only it sets its row of `table`; `row` is None until it is found to serve the model. Belongs to one event
    loop. `fault` is why it gets no requests although it is healthy.
    """

    def __init__(
        self,
        url: str,
        connection: ReplicaConnection,
        rules: HealthRules,
        table: ReplicaTable,
        *,
        capacity: float = math.inf,
        most_s: float = math.inf,
    ) -> None:
        self.url = url
        self.connection = connection
        self._table = table
        self.health = Health(rules)
        self.progress = RequestProgress()
        turn = LimitTurn()
        self._running = ConcurrencyLimit(most=capacity, most_s=most_s, turn=turn)
        self._prefill_slots = ConcurrencyLimit(most=capacity, turn=turn)
        self.refusals = Refusals()
        self._working = 0
        self._non_streaming = False
        """Whether answers come in one piece, so that no first token shows which requests it works on."""
        self._reports = ReportCheck()
        self.row: int | None = None
        self.fault = "it was not asked yet"
        self.checked = False
        self.must_describe = True
        self.leaving = False
        self.models: tuple[ServedModel, ...] = ()
        self.list_due_s = -math.inf
        self.leases: set[TrackedRequest] = set()
        self.cache: CacheWatch | None = None
        self.claimed_s = 0.0
        self.held = False
        self.paused_until_s = -math.inf
        self.wakes_s = -math.inf
        self.cleared_s = -math.inf
        self._asked_pause_s = 0.0
        self._refused_s = -math.inf
        self._pause_s = FIRST_PAUSE_S
        self._usual_s = math.inf
        self._non_streaming_share: float | None = None
        self._has_begun = False
        self.given_up_s = -math.inf
        self._shows_work = False
        self._seen: tuple[ReplicaCounters, float | None, set[TrackedRequest]] | None = None

    # May it get requests?

    @property
    def why(self) -> str:
        if self.leaving:
            return "it has left the list"
        return self.fault or (self.health.why if self.health.state == "shut" else "")

    @property
    def trouble(self) -> str:
        return self.why or self.health.why or "it is full"

    @property
    def usable(self) -> bool:
        return self.health.state != "shut" and not self.fault and not self.leaving

    @property
    def works(self) -> bool:
        return self.usable and self.health.state == "up"

    def open(self, now_s: float) -> bool:
        if self.leaving or self.fault or self.held or now_s < self.paused_until_s:
            return False
        return self.health.room(len(self.leases) - self._older)

    @property
    def _older(self) -> int:
        """Requests sent before it was last shut: they take no place from requests that test it."""
        if math.isinf(self.health.limit):
            return 0
        return sum(lease.epoch != self.health.epoch for lease in self.leases)

    @property
    def throttled(self) -> bool:
        return not self.refusals.checked and len(self.leases) >= self.refusals.most

    def update_available(self, now_s: float) -> bool:
        if self.row is None:
            return False
        open = self.open(now_s)
        self._table.limit[self.row] = self.health.limit + self._older
        if bool(self._table.available[self.row]) == open:
            return False
        self._table.set_available(self.row, open)
        return open

    def update_room(self) -> None:
        if self.row is not None:
            limit = int(min(self._running.limit, self.refusals.most))
            slots = math.inf if self._non_streaming else self._prefill_slots.limit
            self._table.set_room(self.row, limit, slots)

    # Checks and lists

    def join(self, row: int, *, reports_cache: bool) -> None:
        self.row = row
        if reports_cache:
            self._running.start_high()
        self._table.set_available(row, False)
        self.update_room()

    def restarted(self) -> None:
        if self.row is not None:
            self._table.restarted(self.row)
        if self.cache is not None:
            self.cache.restarted()

    def check_failed(self, why: str, began_s: float, now_s: float) -> None:
        if self.row is None:
            self.fault = why
        self.health.check_failed(why, began_s, now_s)
        # It may come back restarted, and serve something else.
        self.must_describe = self.must_describe or self.health.state == "shut"

    def forget_evicted(self, now_s: float) -> None:
        if self.cache is not None and self.row is not None:
            gone = self.cache.evicted((lease.blocks for lease in self.leases), now_s)
            self._table.index.forget(self.row, gone)

    def report(self, load: ReplicaLoad, counters: ReplicaCounters | None, now_s: float) -> None:
        row = self.row
        if counters is not None and self._moves(load, counters):
            self._shows_work = True
            self._sign(now_s)
        if row is None or (counters is not None and not self._reports.news(load, counters)):
            return
        self.claimed_s = self._table.claimed_s(row, load.waiting or 0.0)
        if load.running is not None:
            self._running.reported(load.running, load.waiting or 0.0, load.kv_cache_usage or 0.0, now_s)
            self.update_room()
        credible = self._reports.claimed(self.claimed_s, now_s)
        self._table.report(row, load if credible else ReplicaLoad(load.observed_s))

    @property
    def credible_s(self) -> float:
        return self.claimed_s if self._reports.credible else 0.0

    def forget_stale_report(self, now_s: float) -> None:
        if self.row is not None and self._table.reported_s[self.row] < now_s - STALE_S:
            self.claimed_s = 0.0

    def _moves(self, load: ReplicaLoad, counters: ReplicaCounters) -> bool:
        """Whether its metrics show work: tokens are counted, or the KV cache changes although none of our
        requests started or ended. A long prefill sends nothing meanwhile.
        """
        before, self._seen = self._seen, (counters, load.kv_cache_usage, set(self.leases))
        if before is None:
            return False
        return before[0] != counters or (before[1] != load.kv_cache_usage and before[2] == self.leases)

    # Probes

    def suspect(self, why: str) -> None:
        self.held = True
        self.health.suspect(why)

    def confirm_suspicion(self, now_s: float) -> None:
        self.paused_until_s = max(self.paused_until_s, now_s + self._asked_pause_s)
        self._asked_pause_s = 0.0
        self.health.confirm_suspicion(now_s)

    def clear_suspicion(self, now_s: float) -> None:
        self._asked_pause_s = 0.0
        self.health.clear_suspicion()
        self._excuse(now_s)

    def must_probe_limit(self, limit: Refusals) -> bool:
        return limit is self.refusals and limit.probes < PROBES and self.throttled

    def refutes_limit(self, limit: Refusals, now_s: float) -> bool:
        refuted = limit is self.refusals and limit.probes == PROBES
        if refuted:
            self._excuse(now_s)
        return refuted

    def _excuse(self, now_s: float) -> None:
        self.cleared_s = now_s
        self.refusals = Refusals(self.refusals.seen, now_s + EXCUSED_S)

    # Silence

    def tick(self, now_s: float) -> None:
        self.progress.set_aside_stale(now_s)
        if self.row is not None:
            # Requests that others overtake would not begin sooner at a replica with fewer of them.
            self._running.look(int(self._table.requests[self.row]) - self.progress.overtaken, now_s)
            self._prefill_slots.look(int(self._table.waiting[self.row]), now_s)
        self.update_room()

    def silent_since_s(self) -> float:
        sent_s = [lease.sent_s for lease in self.leases if not lease.ignore_silence]
        if self._shows_work:
            sent_s += [lease.sent_s + METRICS_ONLY_S for lease in self.leases if lease.metrics_only]
        return max(self.progress.moved_s, min(sent_s, default=math.inf))

    def patience_s(self, least_s: float, now_s: float) -> float:
        if self.row is None or not self._has_begun:
            return PATIENCE * least_s
        if now_s - self.given_up_s < PERHAPS_SLOW_S:
            least_s *= PATIENCE
        return max(least_s, PATIENCE * (self._table.queued_s(self.row) + self.credible_s))

    def _sign(self, now_s: float) -> None:
        self.progress.moved(now_s)
        self.health.sign(now_s)

    # Requests

    def sent(self, lease: TrackedRequest, now_s: float) -> None:
        self.leases.add(lease)
        self.progress.sent(lease)
        self._running.began(now_s)
        self._prefill_slots.began(now_s)
        self._use_blocks(lease.blocks, now_s)

    def sent_again(self, lease: TrackedRequest) -> None:
        self.progress.ended(lease)
        self.progress.sent(lease)

    def first_token(
        self, lease: TrackedRequest, now_s: float, *, there: int, waiting: int, own_s: float, claimed_s: float
    ) -> None:
        """Count a first token of a request sent as the last of `there`, when its own prefill was to take
        `own_s` and that of others `claimed_s`; `waiting` had no first token until now.
        """
        took_s = now_s - lease.sent_s
        self.progress.began(lease, now_s)
        self.health.succeeded(lease.epoch, now_s, complete=False)
        self._reports.first_token(claimed_s, own_s, took_s)
        more_s = took_s - self._usual_s
        self._usual_s = took_s if more_s < 0 else self._usual_s + more_s * USUAL_FADE
        self._prefill_slots.waited(took_s, self._usual_s, lease.sent_s, now_s)
        self._prefill_slots.answered(waiting, lease.sent_s, now_s)
        self._has_begun = True
        self._pause_s = FIRST_PAUSE_S
        self.refusals.answered(there, lease.sent_s, now_s, lease.source)
        self.update_room()

    def works_on(self) -> None:
        self._working += 1

    def tokens(self, lease: TrackedRequest, tokens: int, now_s: float, *, first: bool) -> bool:
        gap_s = now_s - lease.moved_s
        self.progress.continued(lease, now_s)
        self.health.sign(now_s)
        if lease.ended or self._non_streaming:
            return False
        before = self._running.limit
        if first:
            self._running.begun(self._working, lease.sent_s, now_s)
        self._running.flowed(self._working, gap_s, now_s, tokens=tokens)
        if self._running.limit == before:
            return False
        self.update_room()
        return True

    def answered(
        self, lease: TrackedRequest, now_s: float, *, there: int, first: bool, non_streaming: bool
    ) -> None:
        self._sign(now_s)
        self.health.succeeded(lease.epoch, now_s, first=first)
        self._running.answered(there, lease.sent_s, now_s)
        share = self._non_streaming_share
        share = float(non_streaming) if share is None else share + (non_streaming - share) * FADE
        self._non_streaming_share = share
        if not MOSTLY < share < 1 - MOSTLY:
            self._non_streaming = share > 0.5
            if self._non_streaming:
                self._running.forget_tokens()
        self.update_room()

    def refused(
        self, error: EngineError, others: int, sent_s: float, now_s: float, source: str | None = None
    ) -> bool:
        """Count a refusal, with `others` there; returns whether it counts against the replica.

        It does not if the replica works on the others, and only once for requests sent at the same time. The
        replica is paused as it asks only if it takes none and refuses a probe, too.
        """
        together = sent_s < self._refused_s
        if not together:
            self._refused_s = now_s
        wait_s = min(error.retry_after_s or 0.0, MAX_PAUSE_S)
        kind = self.refusals.refused(others, sent_s, now_s, wait_s, source)
        if kind == "shut":
            if error.retry_after_s is None and isinstance(error, RateLimited) and not together:
                wait_s, self._pause_s = min(self._pause_s, MAX_PAUSE_S), 2 * self._pause_s
            self._asked_pause_s = wait_s
            if wait_s:
                self.health.refused(str(error))
        self.update_room()
        return not together and kind != "one too many"

    def missed(self, sent_s: float, now_s: float) -> None:
        self._running.missed(sent_s, now_s)
        self.update_room()

    def ended(self, lease: TrackedRequest, now_s: float, *, worked_on: bool) -> None:
        self.leases.discard(lease)
        self._working -= worked_on
        self.progress.ended(lease)
        self._use_blocks(lease.blocks, now_s)

    def _use_blocks(self, blocks: Sequence[int], now_s: float) -> None:
        if self.cache is not None:
            self.cache.used(blocks, now_s)
