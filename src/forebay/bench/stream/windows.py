"""The results that a load must give, if a result stands for all events of a key's window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from forebay.apps.summaries.plan import Windows
from forebay.apps.summaries.state import bounds, ends_of


@dataclass(frozen=True, slots=True)
class Sent:
    """An event that was sent: its id, its event time, and its key or None."""

    id: str
    due_us: int
    key: str | None = None


@dataclass(frozen=True, slots=True)
class KeyWindow:
    key: str
    start_ms: int
    end_ms: int
    events: tuple[Sent, ...] = field(compare=False)

    @property
    def name(self) -> str:
        return window_name(self.key, self.start_ms, self.end_ms)


def window_name(key: str, start_ms: int, end_ms: int, revision: int = 0) -> str:
    """The name of a window's result, equal for repeats."""
    return f"{key}@{start_ms}-{end_ms}" + (f" revision {revision}" if revision else "")


def key_windows(windows: Windows, events: Sequence[Sent]) -> list[KeyWindow]:
    """All windows that these events open, ordered by end. The events are in order and none is late. Rolling
    summaries have no windows."""
    found = _sessions(windows, events) if windows.kind == "session" else _aligned(windows, events)
    return sorted(found, key=lambda each: (each.end_ms, each.key))


def _aligned(windows: Windows, events: Iterable[Sent]) -> Iterator[KeyWindow]:
    held: dict[tuple[str, int], list[Sent]] = {}
    for event in events:
        if event.key is not None:
            for end_ms in ends_of(windows, bounds(windows, event.due_us // 1000)[0]):
                held.setdefault((event.key, end_ms), []).append(event)
    for (key, end_ms), own in held.items():
        yield KeyWindow(key, end_ms - windows.size_ms, end_ms, tuple(own))


def _sessions(windows: Windows, events: Iterable[Sent]) -> Iterator[KeyWindow]:
    by_key: dict[str, list[Sent]] = {}
    for event in events:
        if event.key is not None:
            by_key.setdefault(event.key, []).append(event)
    for key, own in by_key.items():
        begin = 0
        for at, event in enumerate(own):
            end_ms = event.due_us // 1000 + windows.gap_ms
            if at + 1 == len(own) or own[at + 1].due_us // 1000 >= end_ms:
                yield KeyWindow(key, own[begin].due_us // 1000, end_ms, tuple(own[begin : at + 1]))
                begin = at + 1


def least_span_s(windows: Windows, out_of_orderness_s: float) -> float | None:
    """Seconds of events until the first window is surely over; None if none may ever be, as for sessions and
    rolling summaries."""
    return windows.step_ms / 1000 + out_of_orderness_s if windows.size_ms else None
