"""The interface of scaling policies: signals in, decision out; no clock and no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Protocol, runtime_checkable

from pydantic import Field

from forebay.errors import SettingError

MAX_REPLICAS = 10_000
Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
DEFAULT_CLASS = "default"


@dataclass(frozen=True, slots=True)
class Tokens:
    requests: float = 0.0
    prompt: float = 0.0
    output: float = 0.0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.requests + other.requests, self.prompt + other.prompt, self.output + other.output)

    def times(self, factor: float) -> Tokens:
        return Tokens(self.requests * factor, self.prompt * factor, self.output * factor)


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """Requests with their own SLO: the first token is due `slo_s` after the request, plus the time of its
    prefill.
    """

    name: str = DEFAULT_CLASS
    slo_s: float = 10.0

    def __post_init__(self) -> None:
        _check_seconds(f"slo_s of the class {self.name!r}", self.slo_s)
        if self.slo_s == 0:
            raise SettingError(f"slo_s of the class {self.name!r}: expected more than 0 seconds, found 0")


@dataclass(frozen=True, slots=True)
class Backlog:
    """Work that waits in Flink and is due in about `due_in_s` seconds; negative: late."""

    due_in_s: float
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Signals:
    """The state of the stream and its replicas at one moment.

    `now_s` is monotonic; `wall_s` gives the time of day (None: use `now_s`). `starting`: seconds since the
    start of each booting replica; `booted_s`: durations of boots that ended since the last signals. `backlog`
    waits in Flink; `arrived` since the last signals, by class of service. `running` requests are at replicas,
    with `running_tokens` in their KV caches, of which the share `kv_usage` is used. `silent`: subtasks that
    stopped reporting. `asked`: number of replicas requested last, if others share them and request more;
    None: `replicas`.
    """

    now_s: float
    ready: int = 0
    starting: tuple[float, ...] = ()
    draining: int = 0
    booted_s: tuple[float, ...] = ()
    backlog: tuple[Backlog, ...] = ()
    arrived: tuple[tuple[str, Tokens], ...] = ()
    running: float = 0.0
    running_tokens: float = 0.0
    kv_usage: float = 0.0
    age_s: float = 0.0
    wall_s: float | None = None
    silent: int = 0
    asked: int | None = None

    @property
    def kept(self) -> int:
        """The number of replicas that changes nothing."""
        return self.replicas if self.asked is None else self.asked

    @property
    def replicas(self) -> int:
        return self.ready + len(self.starting)

    @property
    def waiting(self) -> float:
        return sum(part.tokens.requests for part in self.backlog)


@dataclass(frozen=True, slots=True)
class Decision:
    """Replicas wanted, without draining ones. `failed`: the policy raised, so the number stays."""

    wanted: int
    reason: str
    failed: bool = False


class ScalingPolicy(Protocol):
    """Decides how many replicas the signals require. `Scaler` applies the limits."""

    def decide(self, signals: Signals) -> Decision: ...


@runtime_checkable
class Remembers(Protocol):
    def remembers(self) -> Mapping[str, object]:
        """State worth keeping, as JSON, without what a pause invalidates."""
        ...

    def recall(self, memory: Mapping[str, object]) -> None:
        """Restore the result of `remembers`, perhaps of an earlier version. May raise for an unusable memory,
        and is then unchanged.
        """
        ...


class Speed(Protocol):
    @property
    def requests(self) -> int: ...

    def work_s(self, tokens: Tokens) -> float: ...


@dataclass(frozen=True, slots=True)
class ReplicaSpeed:
    """Seconds of a busy replica's time per token, in a full batch, and its requests at once."""

    prompt_s: float
    output_s: float
    requests: int = 128

    def __post_init__(self) -> None:
        _check_seconds("prompt_s", self.prompt_s)
        _check_seconds("output_s", self.output_s)
        if self.prompt_s + self.output_s == 0 or self.requests < 1:
            raise SettingError(
                "a replica's speed: expected seconds per token above 0 and at least one request at once; "
                f"found prompt_s {self.prompt_s:g}, output_s {self.output_s:g}, requests {self.requests}"
            )

    def work_s(self, tokens: Tokens) -> float:
        return tokens.prompt * self.prompt_s + tokens.output * self.output_s


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds: a boot until the first request, the warm-up after it, a drain, the time between decisions."""

    boot_s: float = 60.0
    warm_up_s: float = 0.0
    drain_s: float = 10.0
    interval_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("boot_s", "warm_up_s", "drain_s", "interval_s"):
            _check_seconds(name, getattr(self, name))
        if self.interval_s == 0:
            raise SettingError("interval_s: expected more than 0 seconds between decisions, found 0")


@dataclass(frozen=True, slots=True)
class ScalingLimits:
    """Bounds of the number of replicas, also by a budget. Raises `SettingError` for contradictory ones."""

    least: int = 0
    most: int = MAX_REPLICAS
    budget_per_hour: float | None = None
    price_per_hour: float | None = None
    stale_after_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= MAX_REPLICAS or not 1 <= self.most <= MAX_REPLICAS:
            raise SettingError(
                f"replicas: expected a least number from 0 and a most from 1, up to {MAX_REPLICAS}; found "
                f"{self.least} and {self.most}"
            )
        if self.least > self.most:
            raise SettingError(
                f"replicas: the least number, {self.least}, is above the most, {self.most}; lower one of them"
            )
        _check_seconds("stale_after_s", self.stale_after_s)
        if (self.budget_per_hour is None) != (self.price_per_hour is None):
            raise SettingError("budget_per_hour and price_per_hour: give both or none")
        if self.budget_per_hour is not None and self.price_per_hour is not None:
            if not (0 < self.price_per_hour < math.inf and 0 < self.budget_per_hour < math.inf):
                raise SettingError(
                    "budget_per_hour and price_per_hour: expected amounts above 0, found "
                    f"{self.budget_per_hour:g} and {self.price_per_hour:g}"
                )
            if self.ceiling < max(self.least, 1):
                raise SettingError(
                    f"a budget of {self.budget_per_hour:g} an hour pays for {self.ceiling} replicas at "
                    f"{self.price_per_hour:g}, and at least {max(self.least, 1)} are required; raise the "
                    "budget or lower the least number"
                )

    @property
    def ceiling(self) -> int:
        if self.budget_per_hour is None or self.price_per_hour is None:
            return self.most
        return min(self.most, replicas_for(self.budget_per_hour, self.price_per_hour))


def replicas_for(budget_per_hour: float, price_per_hour: float) -> int:
    return int(min(budget_per_hour / price_per_hour + 1e-9, MAX_REPLICAS))


@dataclass(slots=True)
class Scaler:
    """Applies the limits to a policy, and keeps the replicas that the work in flight needs.

    The number stays, within the limits, if signals are older than `limits.stale_after_s` or the policy fails.
    """

    policy: ScalingPolicy
    speed: Speed
    limits: ScalingLimits = field(default_factory=ScalingLimits)

    def decide(self, signals: Signals) -> Decision:
        floor = self.in_flight_needs(signals)
        if not _sound(signals):
            return self._as_it_is(signals, floor, "signals are not numbers in range")
        if signals.age_s == math.inf:
            return self._as_it_is(signals, floor, "there are no signals of the stream yet")
        if signals.age_s > self.limits.stale_after_s:
            return self._as_it_is(signals, floor, f"signals are {signals.age_s:.0f} s old")
        try:
            found = self.policy.decide(signals)
            if type(found.wanted) is not int:
                raise TypeError(f"expected a whole number of replicas, found {found.wanted!r}")
        except Exception as error:
            # A policy may be third-party code, and the replicas must survive its bugs.
            words = f"the policy failed: {type(error).__name__}: {str(error)[:200]}"
            return self._as_it_is(signals, floor, words, failed=True)
        kept = max(found.wanted, signals.kept) if signals.silent else found.wanted
        wanted = self._bound(kept, floor)
        if wanted == found.wanted:
            return found
        why = "the limits"
        if wanted != self._bound(found.wanted, floor):
            why = "silent subtasks may still have work"
        elif wanted == floor > found.wanted:
            why = "work in flight needs them"
        return Decision(wanted, f"{found.reason}; {wanted} in place of {found.wanted}: {why}")

    def _as_it_is(self, signals: Signals, floor: int, why: str, *, failed: bool = False) -> Decision:
        now = signals.kept
        wanted = self._bound(now, floor)
        then = "nothing changes" if wanted == now else f"{wanted} in place of {now} only for the limits"
        return Decision(wanted, f"{why}: {then}", failed)

    def in_flight_needs(self, signals: Signals) -> int:
        running = signals.running
        if not running > 0:
            return 0
        needed = math.ceil(min(running, 1e9) / self.speed.requests)
        return min(needed, signals.ready)

    def _bound(self, wanted: int, floor: int) -> int:
        bounded = min(max(wanted, self.limits.least), self.limits.ceiling)
        return max(bounded, floor)


def whole(replicas: float) -> int:
    if not replicas > 0:
        return 0
    return min(math.ceil(replicas - 0.01), MAX_REPLICAS)


def _sound(signals: Signals) -> bool:
    numbers = (signals.now_s, signals.running, signals.running_tokens, signals.kv_usage)
    in_range = all(math.isfinite(number) for number in numbers) and min(numbers[1:]) >= 0 <= signals.ready
    in_range = in_range and (signals.wall_s is None or math.isfinite(signals.wall_s))
    return in_range and signals.age_s >= 0


def _check_seconds(name: str, seconds: float) -> None:
    if not 0 <= seconds <= 1e7:
        raise SettingError(f"{name}: expected seconds from 0 to 10 million, found {seconds:g}")
