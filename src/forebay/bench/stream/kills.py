"""Kills parts of a pipeline at given times, and compares goodput with and without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Literal, get_args

from forebay.bench.resources import own_use
from forebay.bench.statistics import mean_interval
from forebay.bench.stream.document import MeasuredStream
from forebay.bench.stream.feed import now_us
from forebay.bench.stream.process import Engines, RunProcess
from forebay.bench.stream.records import EventRecord, Killed
from forebay.errors import SettingError
from forebay.processes import alive

Part = Literal["jvm", "command", "engine"]
"""`jvm`: Flink with all tasks; the command restarts it."""
PARTS: tuple[Part, ...] = get_args(Part)
SETTLE_S = 0.1
"""How long calls in flight at a kill may still be answered."""
EDGE = 0.15


@dataclass(frozen=True, slots=True)
class Kill:
    part: Part
    at_s: float


def read_kill(words: str) -> Kill:
    """Parse `PART:SECONDS`. Raises `SettingError`."""
    part, _, number = words.partition(":")
    try:
        at_s = float(number)
    except ValueError:
        at_s = -1.0
    found = next((each for each in PARTS if each == part), None)
    if found is None or not 0 <= at_s <= 1e6:
        raise SettingError(
            f"--kill: expected PART:SECONDS, such as jvm:20, with one of {', '.join(PARTS)}; found "
            f"{words[:80]!r}"
        )
    return Kill(found, at_s)


def drawn_kills(count: int, seconds: float, seed: int, parts: Sequence[Part]) -> list[Kill]:
    dice = Random(f"kills {seed}")
    begin_s, length_s = EDGE * seconds, (1 - 2 * EDGE) * seconds / max(1, count)
    return [
        Kill(parts[number % len(parts)], round(begin_s + (number + dice.random()) * length_s, 2))
        for number in range(count)
    ]


def check_kills(kills: Sequence[Kill], seconds: float) -> None:
    """Raise `SettingError` for a kill after the last event is due."""
    for kill in kills:
        if kill.at_s >= seconds:
            raise SettingError(
                f"--kill {kill.part}:{kill.at_s:g}: expected less than {seconds:.1f}, when the last event "
                "is due; set a longer --seconds"
            )


def since_kills(checkpoints_us: Sequence[int], killed: Sequence[Killed], began_us: int) -> list[int]:
    back_us = began_us + round(max((one.back_s for one in killed), default=0.0) * 1e6)
    return [at_us for at_us in checkpoints_us if at_us >= back_us]


class Killer:
    """Makes kills when they are due; each blocks until its processes are gone, and restarts the engine."""

    def __init__(
        self,
        run: RunProcess,
        engines: Engines,
        kills: Sequence[Kill],
        began_us: int,
        note: Callable[[str], None],
    ) -> None:
        self._run = run
        self._engines = engines
        self._left = sorted(kills, key=lambda kill: kill.at_s)
        self._began_us = began_us
        self._note = note
        self.killed: list[Killed] = []
        self.used_s = 0.0

    def look(self) -> None:
        while self._left and self._passed_s() >= self._left[0].at_s:
            self._kill(self._left.pop(0).part)

    def _kill(self, part: Part) -> None:
        at_s = self._passed_s()
        self._note(f"{at_s:.0f} s: the {part} is killed")
        before = own_use()
        if part == "jvm":
            self._run.kill_jvm()
        elif part == "command":
            self._run.kill_command()
        else:
            self._engines.kill()
        self.used_s += sum(used_s for process, used_s in before.items() if not alive(process))
        if part == "command":
            self._run.start()
        elif part == "engine":
            self._engines.bring_back()
        self.killed.append(Killed(part, at_s, self._passed_s()))

    def _passed_s(self) -> float:
        return (now_us() - self._began_us) / 1e6


def next_result_s(killed: Killed, events: Sequence[EventRecord]) -> float | None:
    after = (
        event.committed_s
        for event in events
        if event.committed_s is not None
        and event.answered_s is not None
        and event.answered_s > killed.at_s + SETTLE_S
    )
    first_s = min(after, default=None)
    return None if first_s is None else first_s - killed.at_s


def goodput_document(found: Sequence[MeasuredStream]) -> dict[str, Any]:
    return {
        "without_kills": _of([measured for measured in found if not measured.run.planned_kills]),
        "with_kills": _of([measured for measured in found if measured.run.planned_kills]),
    }


def _of(found: Sequence[MeasuredStream]) -> dict[str, Any] | None:
    if not found:
        return None
    shares = [each.figures.goodput for each in found if each.figures.goodput is not None]
    interval = mean_interval(shares)
    return {
        "goodput": shares,
        "interval": None if interval is None else asdict(interval),
        "good_per_s": [each.figures.good_per_s for each in found],
        "lost": sum(each.figures.lost for each in found),
        "doubled": sum(each.figures.doubled for each in found),
        "failed": sum(each.figures.failed for each in found),
        "kills": [
            {**asdict(killed), "next_result_s": next_result_s(killed, each.run.followed)}
            for each in found
            for killed in each.run.kills
        ],
    }
