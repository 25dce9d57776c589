"""Which pane an event belongs to, and which panes a window is made of. Times are in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forebay.apps.summaries.plan import Windows
from forebay.apps.summaries.state import Pane

FOREVER_MS = 2**62
"""The end of what has none."""


def bounds(windows: Windows, time_ms: int) -> tuple[int, int]:
    """Start and end of the pane of an event at `time_ms`, were there no other."""
    if windows.kind == "session":
        return time_ms, time_ms + windows.gap_ms
    if windows.kind == "rolling":
        return time_ms, FOREVER_MS
    start_ms = time_ms // windows.step_ms * windows.step_ms
    return start_ms, start_ms + windows.step_ms


def ends_of(windows: Windows, start_ms: int) -> range:
    """The ends of the windows that the pane from `start_ms` is part of; none where ends move or never are."""
    if not windows.size_ms:
        return range(0)
    return range(start_ms + windows.step_ms, start_ms + windows.size_ms + 1, windows.step_ms)


def panes_of(windows: Windows, panes: Iterable[Pane], end_ms: int) -> list[Pane]:
    """The panes of the window of `windows.size_ms` that ends at `end_ms`, in order."""
    return [pane for pane in panes if end_ms - windows.size_ms <= pane.start_ms < end_ms]


def touched(windows: Windows, panes: Sequence[Pane], time_ms: int) -> list[Pane]:
    """The open panes that an event at `time_ms` falls into: at most one, but for sessions, which it may join.

    A session takes no event `max_ms` or more from its other end.
    """
    if windows.kind == "rolling":
        return [pane for pane in panes if not pane.closed][:1]
    if windows.size_ms:
        start_ms, _ = bounds(windows, time_ms)
        return [pane for pane in panes if pane.start_ms == start_ms and not pane.closed]
    found = [
        pane
        for pane in panes
        if not pane.closed and pane.start_ms < time_ms + windows.gap_ms and time_ms < pane.end_ms
    ]
    longest = windows.max_ms
    found = [
        pane
        for pane in found
        if time_ms - pane.start_ms < longest and pane.end_ms - windows.gap_ms - time_ms < longest
    ]
    if len(found) > 1 and found[1].end_ms - windows.gap_ms - found[0].start_ms >= longest:
        return found[:1]
    return found[:2]
