"""The default: the fewest replicas that meet the deadlines of the backlog and of arrivals during a boot.

A replica started now helps after its boot, the *lead*. Of the work that waits at the end of the lead or
arrives later, some is due within d seconds; n replicas do n · d of work in that time. The decision is the
smallest n that is enough for each d:

    n = max over d of (waiting, due within d + arrivals until d - slo_s) / d

Arrivals are forecast, with a margin from past errors. An idle replica is stopped once it was not needed for
as long as another start would cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

from forebay.fleet.autoscale.base import (
    Decision,
    ServiceClass,
    Signals,
    Speed,
    Timings,
    Tokens,
    whole,
)
from forebay.fleet.autoscale.forecast import Forecast, ForecastMemory
from forebay.fleet.autoscale.proportional import LONGEST_HOLD_S, StabilizationWindow

CATCH_UP_S = 300.0
"""Work that is already late is served within this time."""
LONGEST_BOOT = 20.0
"""In expected boots; a longer boot counts as this long."""
SETTLE_S = 60.0
LONGEST_GAP_S = 300.0
CHANCES = 2.0
SHARES = (0.05, 0.125, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class DeadlineMemory:
    boot_s: Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]
    classes: dict[str, ForecastMemory]


_MEMORY: TypeAdapter[DeadlineMemory] = TypeAdapter(DeadlineMemory)


@dataclass(slots=True)
class _Stream:
    slo_s: float
    forecast: Forecast
    near: float = 0.0
    rate: float = 0.0
    above: float = 0.0

    def coming_s(self, span_s: float) -> float:
        """Work that may arrive in a span: the expected work, and an excess that lasts until a replica started
        for it helps. Random noise grows with the root of the span, a jump in proportion.
        """
        blind_s = self.forecast.window_s
        chance = min(self.forecast.arrivals.chance(blind_s) * CHANCES, self.above)
        within_s = min(span_s, blind_s)
        return self.rate * span_s + chance * math.sqrt(within_s * blind_s) + (self.above - chance) * within_s


class DeadlinePolicy:
    """`late_share`: the share of time in which the load may exceed the provision."""

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
        self._hold = StabilizationWindow(self._restart_s)
        self._brief = StabilizationWindow(3 * self._timings.interval_s)
        self._last_s: float | None = None

    @property
    def _start_s(self) -> float:
        return max(self._boot_s, self._oldest_s)

    @property
    def _lead_s(self) -> float:
        return self._start_s + self._timings.warm_up_s + self._timings.interval_s

    @property
    def _longest_boot_s(self) -> float:
        return LONGEST_BOOT * max(self._timings.boot_s, 1.0)

    @property
    def _restart_s(self) -> float:
        return min(self._start_s + self._timings.drain_s, LONGEST_HOLD_S)

    def _blind_s(self, slo_s: float) -> float:
        return max(self._lead_s + self._timings.interval_s - slo_s, 2 * self._timings.interval_s)

    def learn(self, begin_s: float, end_s: float, arrived: Sequence[tuple[str, Tokens]]) -> None:
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
            # It is unknown when they arrived, and whether there are more.
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
        # Late work takes spare capacity; it adds replicas only if there is none.
        needed = whole(max(need, coming + late_s / CATCH_UP_S) if late_s else need)
        if needed == 0 and (signals.backlog or signals.running > 0):
            needed = 1
        if needed and self._may_rest(signals):
            needed = 0
        # Booting replicas have cost little yet: they are stopped as soon as they are not needed.
        held = max(self._brief.add(needed, now_s), min(self._hold.add(needed, now_s), signals.ready))
        why = f"{sum(work for _, work in left):.0f} s of work wait in {lead_s:.0f} s, {coming:.1f}/s come"
        if late_s:
            why += f", {late_s:.0f} s are late"
        if held > needed:
            why += f"; {held} were needed less than a boot ago"
        return Decision(held, why)

    def _may_rest(self, signals: Signals) -> bool:
        if signals.backlog or signals.running > 0:
            return False
        start_s = self._lead_s + self._timings.interval_s
        now_s = signals.now_s
        return all(
            stream.slo_s >= start_s and not stream.forecast.arrivals.between(now_s - start_s, now_s) > 0
            for stream in self._streams.values()
        )

    def _need(self, left: Sequence[tuple[float, float]]) -> float:
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
        """The backlog at the end of the lead that can still be in time, as (seconds from then, work), and
        late work.
        """
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
            # Arrivals during the lead.
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
            # By due time, and at the end of the lead at the latest.
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
        """Learn from ended boots, and from running ones, which may never end. A longer boot counts in full, a
        shorter one by half.
        """
        longest_s = self._longest_boot_s
        for took_s in signals.booted_s:
            if math.isfinite(took_s) and took_s >= 0:
                known_s = min(took_s, longest_s)
                self._boot_s = max(known_s, (self._boot_s + known_s) / 2)
        oldest_s = max(signals.starting, default=0.0)
        self._oldest_s = min(oldest_s, longest_s) if math.isfinite(oldest_s) else 0.0
