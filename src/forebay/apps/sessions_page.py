"""The HTML page of sessions, with a card for each conversation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from forebay.apps.page import why
from forebay.json_numbers import read_json
from forebay.pages.render import page
from forebay.untrusted_text import counted

MAX_SESSIONS = 200
MAX_TURNS = 20
Place = tuple[str, int, int | None]


@dataclass(slots=True)
class Talk:
    key: str
    turns: list[tuple[int, str, str]] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    answered: int = 0
    ended: str = ""
    summary: str = ""


def sessions_page(lines: Iterable[bytes], text: str = "text") -> str:
    found = read_sessions(lines, text)
    shown = found[::-1][:MAX_SESSIONS]
    lead = counted(len(found), "session")
    if live := sum(not talk.ended for talk in found):
        lead += f"; {live:,} of them have not ended"
    if len(shown) < len(found):
        lead += f"; the {len(shown):,} newest are shown"
    return page(
        "sessions.html.j2", title="Sessions", lead=lead, script="filter.js", talks=shown, most=MAX_TURNS
    )


def top_sessions(lines: Iterable[bytes], text: str = "text") -> list[str]:
    found = sorted(read_sessions(lines, text), key=lambda talk: -talk.answered)
    last = {id(talk): f", last: {talk.turns[-1][2]}" for talk in found if talk.turns}
    return [f"{talk.key}: {counted(talk.answered, 'turn')}{last.get(id(talk), '')}" for talk in found]


def read_sessions(lines: Iterable[bytes], text: str = "text") -> list[Talk]:
    """Sessions in the order of their last answers. `text`: the field with the message, with dots for nesting.

    A message without an answer is shown in the session during which it arrived, if any.
    """
    now: dict[str, Talk] = {}
    ended: list[Talk] = []
    of_key: defaultdict[str, list[Talk]] = defaultdict(list)
    unanswered: list[tuple[str, Place, str, str]] = []

    def new(key: str) -> Talk:
        of_key[key].append(talk := Talk(key))
        return talk

    for line in lines:
        try:
            value = read_json(line)
            key = str(value["key"] or "")
            if "cause" in value:
                message = _field(read_json(value["input"].encode()), text)
                reason = f"no answer: {why(value['cause'], value['detail'])}"
                unanswered.append((key, _place(value), message, reason))
            elif "ended" in (answer := value["answer"]):
                end = answer["turns"], answer["ended"], answer["summary"]
                talk = now.pop(key) if key in now else new(key)
                talk.answered, talk.ended, talk.summary = end
                ended.append(talk)
            else:
                number, turn = answer["turn"], (_field(value["fields"], text), answer["text"])
                talk = now.pop(key) if key in now else new(key)
                if 0 < number <= talk.answered:
                    ended.append(talk)
                    talk = new(key)
                talk.answered = number
                talk.turns.append((number, *turn))
                talk.places.append(_place(value))
                # Last, because it has the newest turn.
                now[key] = talk
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    for key, place, message, reason in unanswered:
        if talks := of_key.get(key):
            _insert(talks, place, (0, message, reason))
    return [*ended, *now.values()]


def _insert(talks: list[Talk], place: Place, turn: tuple[int, str, str]) -> None:
    for talk in reversed(talks):
        at = len(talk.places)
        while at and _is_later(talk.places[at - 1], place):
            at -= 1
        if at or talk is talks[0] or not talk.places:
            talk.turns.insert(at, turn)
            talk.places.insert(at, place)
            return


def _is_later(one: Place, other: Place) -> bool:
    if one[0] and one[0] == other[0]:
        return one[1] > other[1]
    return one[2] is not None and other[2] is not None and one[2] > other[2]


def _place(value: Any) -> Place:
    source, _, number = str(value.get("position") or "").rpartition("@")
    time_ms = value.get("time_ms")
    known = (source, int(number)) if number.isdecimal() else ("", 0)
    return *known, time_ms if isinstance(time_ms, int) else None


def _field(value: Any, path: str) -> str:
    for name in path.split("."):
        value = value[name]
    return str(value)
