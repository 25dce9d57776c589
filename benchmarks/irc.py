"""Chats of the #ubuntu channel as streams: the raw logs of irc-disentanglement (CC-BY-4.0)."""

from __future__ import annotations

import re
from pathlib import Path

from forebay.apps.summaries.intake import Arrival
from forebay.errors import SettingError

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
