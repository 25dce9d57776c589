"""Summaries of real chats, on a simulated engine with a measured speed or on a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.http_engine import HttpEngineFactory
from benchmarks.irc import read_channels
from benchmarks.stage import RealStage, SimulatedStage, Stage
from benchmarks.summaries import Channels, measure_summaries
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
