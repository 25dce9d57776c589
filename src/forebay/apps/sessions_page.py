"""The HTML page of sessions: a card for each conversation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from forebay.apps.page import why
from forebay.json_numbers import read_json
from forebay.pages.render import page
from forebay.untrusted_text import counted

MAX_SESSIONS = 200
MAX_TURNS = 20


@dataclass(slots=True)
class Talk:
    """One session of a key. `turns`: number (0 if unanswered), message, and answer or why there is none."""

    key: str
    turns: list[tuple[int, str, str]] = field(default_factory=list)
    answered: int = 0
    ended: str = ""
    summary: str = ""


def sessions_page(lines: Iterable[bytes], text: str = "text") -> str:
    """Build the page from JSON lines: results, then dead letters. Other lines are skipped."""
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
    """A line for each session, the longest first."""
    found = sorted(read_sessions(lines, text), key=lambda talk: -talk.answered)
    last = {id(talk): f", last: {talk.turns[-1][2]}" for talk in found if talk.turns}
    return [f"{talk.key}: {counted(talk.answered, 'turn')}{last.get(id(talk), '')}" for talk in found]


def read_sessions(lines: Iterable[bytes], text: str = "text") -> list[Talk]:
    """In the order of their last turns. `text`: the field with the message, with dots for nesting."""
    now: dict[str, Talk] = {}
    ended: list[Talk] = []
    for line in lines:
        try:
            value = read_json(line)
            key = str(value["key"] or "")
            number, turn = 0, None
            if "cause" in value:
                reason = f"no answer: {why(value['cause'], value['detail'])}"
                turn = _field(read_json(value["input"].encode()), text), reason
            elif "ended" not in (answer := value["answer"]):
                number, turn = answer["turn"], (_field(value["fields"], text), answer["text"])
            talk = now.pop(key, Talk(key))
            if turn is not None:
                if 0 < number <= talk.answered:
                    ended.append(talk)
                    talk = Talk(key)
                talk.answered = number or talk.answered
                talk.turns.append((number, *turn))
                # Behind the others: it has the newest turn.
                now[key] = talk
            else:
                talk.answered, talk.ended, talk.summary = answer["turns"], answer["ended"], answer["summary"]
                ended.append(talk)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return [*ended, *now.values()]


def _field(value: Any, path: str) -> str:
    for name in path.split("."):
        value = value[name]
    return str(value)
