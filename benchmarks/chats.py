"""Summaries of real chats, on a simulated engine with a measured speed or on a real one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.stage import RealStage, SimulatedStage, Stage
from benchmarks.summaries import Channels, measure_summaries
from benchmarks.workload import HttpEngineFactory
from forebay.apps.summaries.intake import Arrival
from forebay.apps.summaries.plan import HOUR_MS, SummaryPlan, Windows
from forebay.engine.replica import list_models
from forebay.errors import EngineError, SettingError
from forebay.planning.simulate.engine import LLAMA_8B

SPEED = 120.0
"""Replay speed of chats for a real engine."""
LONGEST_MS = 7 * HOUR_MS
"""Longest chat for a real engine: three and a half minutes at that speed, measured three times."""
LEAD_S = 60.0
REAL_LEAD_S = 3.0
"""At that speed, a minute would be most of a window."""
TIMEOUT_S = 120.0


def measure_chats(
    folder: Path, engine: str | None, skipped: dict[str, str], say: Callable[[str], None]
) -> dict[str, Any]:
    """Figures of hourly summaries of each chat in `folder`, each on its own engine.

    Without `engine` in simulated time, which takes seconds; with one about ten minutes. Raises `SettingError`
    if the engine does not answer or serves several models.
    """
    channels: Channels = read_channels(folder)
    windows = Windows.tumbling(HOUR_MS)
    if engine is None:
        plan = SummaryPlan(windows, lead_ms=round(LEAD_S * 1000))
        report = measure_summaries(channels, lambda: SimulatedStage(LLAMA_8B), plan, say)
        return {"engine": f"simulated: {LLAMA_8B.name}", "speed": 1.0, **report}
    model = _model(engine)
    for name in [name for name, said in channels.items() if _length_ms(said) > LONGEST_MS]:
        skipped[f"{folder.name}/{name}"] = f"longer than {LONGEST_MS // HOUR_MS} h, for a real engine"
    channels = {name: said for name, said in channels.items() if _length_ms(said) <= LONGEST_MS}
    # The lead is time for a call, which is not faster in a faster replay.
    plan = SummaryPlan(windows, lead_ms=round(REAL_LEAD_S * 1000 * SPEED))

    def open_stage() -> Stage:
        return RealStage(HttpEngineFactory(engine), model, speed=SPEED, timeout_s=TIMEOUT_S)

    return {"engine": model, "speed": SPEED, **measure_summaries(channels, open_stage, plan, say)}


def _length_ms(said: Any) -> int:
    return int(said[-1].time_ms - said[0].time_ms) if said else 0


def _model(url: str) -> str:
    try:
        names = [model.name for model in asyncio.run(list_models(url))]
    except EngineError as error:
        raise SettingError(f"--engine: {error}") from None
    if len(names) != 1:
        raise SettingError(f"--engine: expected an engine that serves one model, found {', '.join(names)}")
    return names[0]


_SAID = re.compile(r"^\[(\d\d):(\d\d)\] (?:<([^>]*)>| \* (\S+)) ?(.*)$")
DAY_MIN = 24 * 60
HALF_DAY_MIN = 12 * 60
DAY_BEGIN_MS = 1_600_041_600_000
"""Midnight of the day to which all logs are moved, so that channels run concurrently."""


def read_channels(folder: Path) -> dict[str, list[Arrival]]:
    """The messages of each log, by its name, in order of time. Raises `SettingError` if there is no log.

    Logs have a resolution of minutes: messages of a minute are spread evenly over it. Joins and leaves are
    skipped. All logs start on one day, at their recorded minute of the hour.
    """
    channels = {}
    for path in sorted(folder.glob("*.raw.txt")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        channels[path.name.removesuffix(".raw.txt")] = _arrivals(path.name, lines)
    if not channels:
        raise SettingError(f"{folder} holds no logs (*.raw.txt)")
    return channels


def _arrivals(name: str, lines: list[str]) -> list[Arrival]:
    said = [found for found in map(_SAID.match, lines) if found]
    # Old logs use a twelve-hour clock without AM and PM.
    clock = DAY_MIN if any(int(each[1]) > 12 for each in said) else HALF_DAY_MIN
    minutes: list[int] = []
    for each in said:
        minute = int(each[1]) % (clock // 60) * 60 + int(each[2])
        while minutes and minute < minutes[-1] - 5:
            minute += clock
        minutes.append(max(minute, minutes[-1] if minutes else minute))
    first = minutes[0] // 60 * 60 if minutes else 0
    within: dict[int, int] = {}
    for minute in minutes:
        within[minute] = within.get(minute, 0) + 1
    seen: dict[int, int] = {}
    arrivals = []
    for number, (minute, each) in enumerate(zip(minutes, said, strict=True)):
        nth = seen[minute] = seen.get(minute, -1) + 1
        time_ms = DAY_BEGIN_MS + 60_000 * (minute - first) + 60_000 * nth // within[minute]
        arrivals.append(Arrival(f"{name}@{number}", time_ms, f"{each[3] or each[4]}: {each[5]}"))
    return arrivals
