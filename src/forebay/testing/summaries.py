"""A scripted summariser: answers a call for a summary by taking sentences from what it was given.

It reads the prompt as a model would, and its answers are as long as a model's: about one statement for every
`EVENTS_A_STATEMENT` messages, each of about `WORDS` words. Same prompt, same answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from forebay.apps.summaries.parts import MAX_SOURCES, tokens
from forebay.apps.summaries.prompt import MAX_STATEMENT_CHARS, STATEMENT_OF_TOKENS
from forebay.records import JSON

EVENTS_A_STATEMENT = 8
WORDS = 18
_LINE = re.compile(r"^(\d+)\. (.*)$")
_LIMIT = re.compile(r"the whole has at most (\d+) tokens")


def is_summary_form(schema: Mapping[str, JSON]) -> bool:
    """Whether an answer of this form is a summary's."""
    statement = schema.get("properties", {}).get("statements", {}).get("items", {})
    return "sources" in statement.get("properties", {})


def summarise(text: str, schema: Mapping[str, Any]) -> str:
    """The answer to the prompt `text`, as JSON."""
    earlier, messages = _part(text, "earlier"), _part(text, "messages")
    most = schema["properties"]["statements"]["maxItems"]
    groups = min(most, -(-len(messages) // EVENTS_A_STATEMENT)) if messages else 0
    statements = []
    for n in range(groups):
        group = messages[n * len(messages) // groups : (n + 1) * len(messages) // groups]
        words = " ".join(said for _, said in group).split()
        step = max(1, len(words) // WORDS)
        said = " ".join(words[::step][:WORDS])[:MAX_STATEMENT_CHARS]
        statements.append(
            {"text": said or "nothing", "sources": [number for number, _ in group][:MAX_SOURCES]}
        )
    answer: dict[str, JSON] = {"statements": statements}
    if "keep" in schema["properties"]:
        found = _LIMIT.search(text)
        room = (int(found[1]) if found else 0) - STATEMENT_OF_TOKENS * groups
        keep = []
        # The longest: a stand-in for what matters.
        for number, said in sorted(earlier, key=lambda each: (-len(each[1]), each[0])):
            cost = tokens(said) + 6
            if cost <= room:
                room -= cost
                keep.append(number)
        answer = {"keep": sorted(keep), **answer}
    return orjson.dumps(answer).decode()


def _part(text: str, mark: str) -> list[tuple[int, str]]:
    _, begun, rest = text.rpartition(f"\n<{mark}>\n")
    part = rest.partition(f"\n</{mark}>")[0] if begun else ""
    found = (_LINE.match(line) for line in part.splitlines())
    return [(int(line[1]), line[2]) for line in found if line]
