"""Measures summaries against summarising a window after its close: delay after the close, and tokens."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.stage import RealStage, SimulatedStage, Stage
from forebay.apps.summaries.intake import Arrival
from forebay.apps.summaries.plan import HOUR_MS, SummaryPlan, Windows
from forebay.apps.summaries.program import Output, SummaryProgram
from forebay.apps.summaries.prompt import SummaryCall, read_answer, without_answer
from forebay.apps.summaries.state import KeyState
from forebay.apps.summaries.values import Item, Statement, Summary, clean, events_of, item_of, within
from forebay.engine.client import HttpEngine
from forebay.engine.replica import list_models
from forebay.errors import EngineError, SettingError
from forebay.planning.simulate.engine import LLAMA_8B
from forebay.records import JSON, Usage
from forebay.stateful.program import Failure

Channels = Mapping[str, Sequence[Arrival]]
Window = tuple[str, int]
"""A channel, and the end of one of its windows."""

GIVEN_UP = Failure("timeout", "the scripted model gave no answer")


@dataclass
class Tally:
    """One way to summarise: seconds from close to summary by window, calls, tokens, and the events in the
    calls of each window."""

    close_s: dict[Window, float] = field(default_factory=dict)
    summary_tokens: dict[Window, int] = field(default_factory=dict)
    spent: Counter[Window] = field(default_factory=Counter)
    covered: dict[Window, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    events: Counter[Window] = field(default_factory=Counter)
    left_out: int = 0
    failed: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def asked(self, window: Window, ask: SummaryCall) -> None:
        self.calls += 1
        self.covered[window].update(item.id for item in ask.items)
        self.events[window] += events_of(ask.items)

    def answered(self, window: Window, usage: Usage) -> None:
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        self.spent[window] += usage.prompt_tokens + usage.completion_tokens

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def figures(self) -> dict[str, Any]:
        times = sorted(self.close_s.values())
        return {
            "windows": len(times),
            "close_s_p50": round(median(times), 3),
            "close_s_p90": round(times[len(times) * 9 // 10], 3),
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }


def measure_summaries(
    channels: Channels,
    open_stage: Callable[[], Stage],
    plan: SummaryPlan,
    note: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """`close_ratio` and `token_ratio` over the faster baseline, and whether each event was sent
    exactly once."""
    ours = _streamed(channels, open_stage(), plan)
    note(f"summaries while windows are open: {ours.figures()}")
    baselines = {
        "one_call": _collected(channels, open_stage(), plan, chunked=False),
        "map_reduce": _collected(channels, open_stage(), plan, chunked=True),
    }
    for name, each in baselines.items():
        note(f"baseline {name}: {each.figures()}")
    baseline = min(baselines, key=lambda name: median(baselines[name].close_s.values()))
    missed, doubled = reported_once(channels, ours, plan)
    own = median(ours.close_s.values())

    def ratios(other: Tally) -> dict[str, float]:
        return {
            "close_ratio": round(own / median(other.close_s.values()), 3),
            "token_ratio": round(ours.tokens / other.tokens, 3),
        }

    return {
        "baseline": baseline,
        **ratios(baselines[baseline]),
        "missed": missed,
        "doubled": doubled,
        "left_out": ours.left_out,
        "failed": ours.failed,
        "over_budget": sum(
            ours.summary_tokens[window] > plan.summary_tokens or ours.spent[window] > plan.work_tokens
            for window in ours.summary_tokens
        ),
        "events": sum(map(len, channels.values())),
        **ours.figures(),
        "baselines": {name: {**each.figures(), **ratios(each)} for name, each in baselines.items()},
    }


def reported_once(channels: Channels, tally: Tally, plan: SummaryPlan) -> tuple[int, int]:
    """Number of events in no call of their window, and in more than one."""
    wanted: Counter[Window] = Counter()
    for channel, arrivals in channels.items():
        for arrival in arrivals:
            wanted[channel, _end_ms(plan, arrival)] += 1
    windows = {*wanted, *tally.events}
    missed = sum(max(0, wanted[window] - tally.events[window]) for window in windows)
    doubled = sum(max(0, tally.events[window] - wanted[window]) for window in windows)
    again = sum(times - 1 for covered in tally.covered.values() for times in covered.values())
    return missed - tally.left_out, doubled + again


def _end_ms(plan: SummaryPlan, arrival: Arrival) -> int:
    size_ms = plan.windows.size_ms
    return (arrival.time_ms or 0) // size_ms * size_ms + size_ms


class _Key:
    def __init__(self, name: str, stage: Stage, program: SummaryProgram, tally: Tally) -> None:
        self._name = name
        self._stage = stage
        self._program = program
        self._tally = tally
        self._state = KeyState()
        self._out: str | None = None
        self._woken_ms: int | None = None
        self.watermark_ms: int | None = None

    def event(self, arrival: Arrival) -> None:
        assert arrival.time_ms is not None
        self.watermark_ms = max(self.watermark_ms or 0, arrival.time_ms - 1)
        self._stepped(self._program.on_event(self._name, self._state, arrival, self.watermark_ms))

    def wake(self, at_ms: int) -> None:
        self.watermark_ms = max(self.watermark_ms or 0, at_ms)
        self._stepped(self._program.on_watermark(self._name, self._state, self.watermark_ms))

    def _stepped(self, outputs: list[Output]) -> None:
        for each in outputs:
            if isinstance(each, Summary):
                window = self._name, each.end_ms
                self._tally.close_s[window] = self._stage.waited_s(each.end_ms)
                self._tally.summary_tokens[window] = sum(one.tokens for one in each.statements)
                self._tally.left_out += each.left_out
                self._tally.failed += each.failed
        ask = self._program.ask(self._name, self._state)
        if ask is not None and ask.id != self._out:
            self._out = ask.id
            assert self._state.work is not None
            work = self._state.work
            end_ms = work.end_ms or self._state.pane(work.pane).end_ms
            self._tally.asked((self._name, end_ms), ask)
            self._stage.ask(ask, partial(self._answered, (self._name, end_ms)))
        wake_ms = self._program.wake_ms(self._state)
        if wake_ms is not None and wake_ms != self._woken_ms:
            self._woken_ms = wake_ms
            # The close is the end itself; the watermark guarantees that all earlier events have arrived.
            self._stage.at(wake_ms + 1, partial(self.wake, wake_ms))

    def _answered(self, window: Window, answer: JSON | None, usage: Usage) -> None:
        self._out = None
        self._tally.answered(window, usage)
        if answer is None:
            self._stepped(self._program.on_failure(self._name, self._state, GIVEN_UP))
        else:
            self._stepped(self._program.on_answer(self._name, self._state, answer, usage))


def _streamed(channels: Channels, stage: Stage, plan: SummaryPlan) -> Tally:
    tally, program = Tally(), SummaryProgram(plan)
    for name, arrivals in channels.items():
        key = _Key(name, stage, program, tally)
        for arrival in arrivals:
            stage.at(arrival.time_ms or 0, partial(key.event, arrival))
    stage.run()
    return tally


def _collected(channels: Channels, stage: Stage, plan: SummaryPlan, *, chunked: bool) -> Tally:
    tally = Tally()
    for name, arrivals in channels.items():
        windows: dict[int, list[Item]] = {}
        for arrival in arrivals:
            item = item_of(arrival.id, arrival.time_ms or 0, clean(arrival.text, plan.text_tokens))
            windows.setdefault(_end_ms(plan, arrival), []).append(item)
        for end_ms, items in windows.items():
            window = _Collected((name, end_ms), items, stage, plan, tally)
            stage.at(end_ms, partial(window.close, chunked))
    stage.run()
    return tally


class _Collected:
    def __init__(
        self, window: Window, items: list[Item], stage: Stage, plan: SummaryPlan, tally: Tally
    ) -> None:
        self._window = window
        self._items = items
        self._stage = stage
        self._plan = plan
        self._tally = tally
        self._found: dict[int, tuple[Statement, ...]] = {}

    def close(self, chunked: bool) -> None:
        chunks = self._chunks() if chunked else [self._items]
        if len(chunks) == 1:
            self._ask((), tuple(self._items), self._plan.summary_tokens, self._end)
            return
        for n, chunk in enumerate(chunks):
            done = partial(self._mapped, n, len(chunks))
            self._ask((), tuple(chunk), self._plan.partial_tokens, done)

    def _mapped(self, n: int, of: int, statements: tuple[Statement, ...]) -> None:
        self._found[n] = statements
        if len(self._found) < of:
            return
        every = tuple(each for n in range(of) for each in self._found[n])
        if sum(each.tokens for each in every) <= self._plan.summary_tokens:
            self._end(every)
        else:
            self._ask(every, (), self._plan.summary_tokens, self._end)

    def _end(self, statements: tuple[Statement, ...]) -> None:
        kept, _ = within(statements, self._plan.summary_tokens)
        self._tally.close_s[self._window] = self._stage.waited_s(self._window[1])
        self._tally.summary_tokens[self._window] = sum(each.tokens for each in kept)

    def _ask(
        self,
        statements: tuple[Statement, ...],
        items: tuple[Item, ...],
        limit: int,
        done: Callable[[tuple[Statement, ...]], None],
    ) -> None:
        name = f"{self._window[1]}-{items[0].id if items else 'reduce'}"
        ask = SummaryCall(name, "close", self._window[0], statements, items, limit)
        self._tally.asked(self._window, ask)

        def answered(answer: JSON | None, usage: Usage) -> None:
            self._tally.answered(self._window, usage)
            read = without_answer(ask) if answer is None else read_answer(ask, answer)
            done((*read.earlier, *read.new))

        self._stage.ask(ask, answered)

    def _chunks(self) -> list[list[Item]]:
        chunks: list[list[Item]] = [[]]
        room = self._plan.chunk_tokens
        for item in self._items:
            if item.tokens > room:
                chunks.append([])
                room = self._plan.chunk_tokens
            chunks[-1].append(item)
            room -= item.tokens
        return chunks


SPEED = 120.0
"""Replay speed of chats for a real engine."""
LONGEST_MS = 7 * HOUR_MS
"""Longest chat for a real engine: three and a half minutes at that speed, measured three times."""
LEAD_S = 60.0
REAL_LEAD_S = 3.0
"""At that speed, a minute would be most of a window."""
TIMEOUT_S = 120.0


def measure_chats(
    folder: Path, engine: str | None, skipped: dict[str, str], note: Callable[[str], None]
) -> dict[str, Any]:
    channels: Channels = read_channels(folder)
    windows = Windows.tumbling(HOUR_MS)
    if engine is None:
        plan = SummaryPlan(windows, lead_ms=round(LEAD_S * 1000))
        report = measure_summaries(channels, lambda: SimulatedStage(LLAMA_8B), plan, note)
        return {"engine": f"simulated: {LLAMA_8B.name}", "speed": 1.0, **report}
    model = _model(engine)
    for name in [name for name, detail in channels.items() if _length_ms(detail) > LONGEST_MS]:
        skipped[f"{folder.name}/{name}"] = f"longer than {LONGEST_MS // HOUR_MS} h, for a real engine"
    channels = {name: detail for name, detail in channels.items() if _length_ms(detail) <= LONGEST_MS}
    # The lead is time for a call, which is not faster in a faster replay.
    plan = SummaryPlan(windows, lead_ms=round(REAL_LEAD_S * 1000 * SPEED))

    def open_stage() -> Stage:
        return RealStage(partial(HttpEngine, engine), model, speed=SPEED, timeout_s=TIMEOUT_S)

    return {"engine": model, "speed": SPEED, **measure_summaries(channels, open_stage, plan, note)}


def _length_ms(messages: Any) -> int:
    return int(messages[-1].time_ms - messages[0].time_ms) if messages else 0


def _model(url: str) -> str:
    try:
        names = [model.name for model in asyncio.run(list_models(url))]
    except EngineError as error:
        raise SettingError(f"--engine: {error}") from None
    if len(names) != 1:
        raise SettingError(f"--engine: expected an engine that serves one model, found {', '.join(names)}")
    return names[0]


_LINE = re.compile(r"^\[(\d\d):(\d\d)\] (?:<([^>]*)>| \* (\S+)) ?(.*)$")
DAY_MIN = 24 * 60
HALF_DAY_MIN = 12 * 60
DAY_BEGIN_MS = 1_600_041_600_000
"""Midnight of the day to which all logs are moved, so that channels run concurrently."""


def read_channels(folder: Path) -> dict[str, list[Arrival]]:
    """The messages of each log, by its name, in order of time."""
    channels = {}
    for path in sorted(folder.glob("*.raw.txt")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        channels[path.name.removesuffix(".raw.txt")] = _arrivals(path.name, lines)
    if not channels:
        raise SettingError(f"{folder} holds no logs (*.raw.txt)")
    return channels


def _arrivals(name: str, lines: list[str]) -> list[Arrival]:
    detail = [found for found in map(_LINE.match, lines) if found]
    # Old logs use a twelve-hour clock without AM and PM.
    clock = DAY_MIN if any(int(each[1]) > 12 for each in detail) else HALF_DAY_MIN
    minutes: list[int] = []
    for each in detail:
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
    for number, (minute, each) in enumerate(zip(minutes, detail, strict=True)):
        nth = seen[minute] = seen.get(minute, -1) + 1
        time_ms = DAY_BEGIN_MS + 60_000 * (minute - first) + 60_000 * nth // within[minute]
        arrivals.append(Arrival(f"{name}@{number}", time_ms, f"{each[3] or each[4]}: {each[5]}"))
    return arrivals
