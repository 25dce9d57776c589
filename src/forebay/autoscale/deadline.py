"""The default: as few replicas as meet the deadlines of what waits and of what will come while they boot.

A replica that is started now helps once it has booted, after the *lead*, and can be corrected by another one
a lead later. So the number is chosen for the time in between. Of the work that waits when the lead is over,
and of what may arrive from then on, so much is due within d seconds; n replicas do n · d of it. The least n
that is enough for each d is wanted:

    n = max over d of (waiting, due within d + arrivals until d - slo_s) / d

Work may wait as long as its SLO allows: short peaks are spread over that time, and fewer replicas run than
arrivals would keep busy while there is slack. Arrivals are forecast, with a margin by how wrong the forecast
was. A replica that is idle goes when it was not needed for as long as another start would cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

from forebay.autoscale.base import (
    Decision,
    ServiceClass,
    Signals,
    Speed,
    Timings,
    Tokens,
    whole,
)
from forebay.autoscale.forecast import Forecast, ForecastMemory
from forebay.autoscale.proportional import LONGEST_HOLD_S, Hold

CATCH_UP_S = 300.0
"""What is late already is served within so long: it no longer meets its SLO, but it is not left behind."""
LONGEST_BOOT = 20.0
"""Times the boot that was expected: a longer one is believed no more."""
SETTLE_S = 60.0
"""How soon the present rate gives way to the forecast one."""
LONGEST_GAP_S = 300.0
"""After a longer time without signals, arrivals are counted anew."""
CHANCES = 2.0
"""Standard deviations that are taken for chance; what is above them is taken for a jump."""
SHARES = (0.05, 0.125, 0.25, 0.5, 1.0)
"""Where in the time between two corrections deadlines are checked."""


@dataclass(frozen=True, slots=True)
class DeadlineMemory:
    """What outlives a restart: how long boots took, and the forecast of each class of service."""

    boot_s: Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]
    classes: dict[str, ForecastMemory]


_MEMORY: TypeAdapter[DeadlineMemory] = TypeAdapter(DeadlineMemory)


@dataclass(slots=True)
class _Stream:
    """One class of service: its arrivals and what is expected of them."""

    slo_s: float
    forecast: Forecast
    near: float = 0.0
    rate: float = 0.0
    above: float = 0.0

    def coming_s(self, span_s: float) -> float:
        """Work that may come within a span: what is expected, and an excess that goes on until a replica
        that is started for it helps. Chance adds up as a root, a jump in full."""
        blind_s = self.forecast.window_s
        chance = min(self.forecast.arrivals.chance(blind_s) * CHANCES, self.above)
        within_s = min(span_s, blind_s)
        return self.rate * span_s + chance * math.sqrt(within_s * blind_s) + (self.above - chance) * within_s


class Deadline:
    """`late_share`: how often the load may exceed what was provided for, as a share of time."""

    def __init__(
        self,
        speed: Speed,
        classes: Sequence[ServiceClass] = (ServiceClass(),),
        timings: Timings | None = None,
        *,
        late_share: float = 0.01,
    ) -> None:
        self._speed = speed
        self._timings = timings or Timings()
        self._late_share = late_share
        self._boot_s = self._timings.boot_s
        self._oldest_s = 0.0
        self._streams = {
            each.name: _Stream(each.slo_s, Forecast(self._blind_s(each.slo_s))) for each in classes
        }
        self._hold = Hold(self._restart_s)
        self._brief = Hold(3 * self._timings.interval_s)
        self._last_s: float | None = None

    @property
    def _start_s(self) -> float:
        """How long a boot takes: as the last ones did, and at least as long as the present one has taken."""
        return max(self._boot_s, self._oldest_s)

    @property
    def _lead_s(self) -> float:
        return self._start_s + self._timings.warm_up_s + self._timings.interval_s

    @property
    def _longest_boot_s(self) -> float:
        return LONGEST_BOOT * max(self._timings.boot_s, 1.0)

    @property
    def _restart_s(self) -> float:
        """What it costs to take a replica away and start it again."""
        return min(self._start_s + self._timings.drain_s, LONGEST_HOLD_S)

    def _blind_s(self, slo_s: float) -> float:
        """What arrives for so long cannot be answered in time by a replica that is started for it."""
        return max(self._lead_s + self._timings.interval_s - slo_s, 2 * self._timings.interval_s)

    def learn(self, begin_s: float, end_s: float, arrived: Sequence[tuple[str, Tokens]]) -> None:
        """What came between these moments: from history, or from the last signals."""
        known = dict(arrived)
        for name, stream in self._streams.items():
            tokens = known.get(name)
            stream.forecast.add(begin_s, end_s, self._speed.work_s(tokens) if tokens else 0.0)

    def remembers(self) -> Mapping[str, object]:
        classes = {name: stream.forecast.remembers() for name, stream in self._streams.items()}
        return asdict(DeadlineMemory(self._boot_s, classes))

    def recall(self, memory: Mapping[str, object]) -> None:
        found = _MEMORY.validate_python(memory)
        for name, stream in self._streams.items():
            if name in found.classes:
                stream.forecast.recall(found.classes[name])
        self._boot_s = min(found.boot_s, self._longest_boot_s)

    def decide(self, signals: Signals) -> Decision:
        now_s = signals.now_s
        last_s = now_s - self._timings.interval_s if self._last_s is None else self._last_s
        for stream in self._streams.values():
            stream.forecast.wall_ahead_s = 0.0 if signals.wall_s is None else signals.wall_s - now_s
        if now_s - last_s > LONGEST_GAP_S:
            # Of what came meanwhile, nobody knows when it came, nor whether it is all.
            for stream in self._streams.values():
                stream.forecast.resume()
        elif now_s > last_s:
            self.learn(last_s, now_s, signals.arrived)
        self._last_s = now_s
        self._boots(signals)
        lead_s = self._lead_s
        self._hold.hold_s = self._restart_s
        for stream in self._streams.values():
            forecast = stream.forecast
            forecast.resize(self._blind_s(stream.slo_s))
            stream.above = forecast.above(forecast.expect(now_s), self._late_share)
            stream.near = forecast.arrivals.level(now_s)[0]
            stream.rate = forecast.rate(now_s, 1.5 * lead_s)
        left, late_s = self._after_lead(signals)
        need = self._need(left)
        coming = sum(stream.rate for stream in self._streams.values())
        # What is late takes what is spare; it asks for more only where nothing is.
        needed = whole(max(need, coming + late_s / CATCH_UP_S) if late_s else need)
        if needed == 0 and (signals.backlog or signals.running > 0):
            needed = 1
        if needed and self._may_rest(signals):
            needed = 0
        # Those that still boot have cost little yet: they go as soon as they are not needed.
        held = max(self._brief.add(needed, now_s), min(self._hold.add(needed, now_s), signals.ready))
        why = f"{sum(work for _, work in left):.0f} s of work wait in {lead_s:.0f} s, {coming:.1f}/s come"
        if late_s:
            why += f", {late_s:.0f} s are late"
        if held > needed:
            why += f"; {held} were needed less than a boot ago"
        return Decision(held, why)

    def _may_rest(self, signals: Signals) -> bool:
        """Whether no replica is needed though more may come: nothing is to be done, nothing has come for as
        long as a start takes, and what comes can wait for one."""
        if signals.backlog or signals.running > 0:
            return False
        start_s = self._lead_s + self._timings.interval_s
        now_s = signals.now_s
        return all(
            stream.slo_s >= start_s and not stream.forecast.arrivals.between(now_s - start_s, now_s) > 0
            for stream in self._streams.values()
        )

    def _need(self, left: Sequence[tuple[float, float]]) -> float:
        """The least number of replicas, from the lead on, with which all is in time."""
        streams = self._streams.values()
        need = 0.0
        for first in streams:
            for share in SHARES:
                due_s = first.slo_s + share * self._lead_s
                work = sum(work_s for by_s, work_s in left if by_s <= due_s)
                work += sum(
                    stream.coming_s(due_s - stream.slo_s) for stream in streams if due_s > stream.slo_s
                )
                need = max(need, work / due_s)
        for due_s, _ in left:
            work = sum(work_s for by_s, work_s in left if by_s <= due_s)
            need = max(need, work / max(due_s, self._timings.interval_s))
        return need

    def _after_lead(self, signals: Signals) -> tuple[list[tuple[float, float]], float]:
        """What waits when the lead is over and can still be in time, as (due in seconds from then, work); and
        the work that is late by then. Until then, the replicas there are serve what is due first."""
        lead_s = self._lead_s
        ready_in_s = [0.0] * signals.ready
        ready_in_s += [max(self._start_s - age_s, 0.0) for age_s in signals.starting]
        queue: list[tuple[float, float]] = []
        late_s = 0.0
        for part in signals.backlog:
            work_s = self._speed.work_s(part.tokens)
            if part.due_in_s <= 0:
                late_s += work_s
            else:
                queue.append((part.due_in_s, work_s))
        for stream in self._streams.values():
            pieces = 6
            # What comes during the lead.
            for piece in range(pieces):
                share = (piece + 0.5) / pieces
                turn = min(share * lead_s / SETTLE_S, 1.0)
                rate = stream.near + (stream.rate - stream.near) * turn
                queue.append((share * lead_s + stream.slo_s, max(rate, 0.0) * lead_s / pieces))
        queue.sort()
        left: list[tuple[float, float]] = []
        done_s = lost_s = 0.0
        total_s = sum(max(lead_s - each, 0.0) for each in ready_in_s)
        for due_s, work_s in queue:
            # By when it is due, and at the end of the lead at the latest.
            by_s = min(due_s, lead_s)
            could_s = total_s if by_s >= lead_s else sum(max(by_s - each, 0.0) for each in ready_in_s)
            served_s = min(work_s, max(could_s - done_s, 0.0))
            done_s += served_s
            rest_s = work_s - served_s
            if rest_s <= 0:
                continue
            if due_s > lead_s:
                left.append((due_s - lead_s, rest_s))
            else:
                lost_s += rest_s
        return left, late_s + lost_s

    def _boots(self, signals: Signals) -> None:
        """Learn from boots that have ended, and see how long those take that have not: those may never end,
        and teach nothing. A longer one is believed at once, a shorter one by half."""
        longest_s = self._longest_boot_s
        for took_s in signals.booted_s:
            if math.isfinite(took_s) and took_s >= 0:
                known_s = min(took_s, longest_s)
                self._boot_s = max(known_s, (self._boot_s + known_s) / 2)
        oldest_s = max(signals.starting, default=0.0)
        self._oldest_s = min(oldest_s, longest_s) if math.isfinite(oldest_s) else 0.0
