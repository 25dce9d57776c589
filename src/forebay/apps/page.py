"""Reads the result lines of an application for its page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any, TypeVar

from forebay.errors import AnswerCut, AnswerRefused, ContentFiltered, EmptyAnswer, InvalidAnswer, OutOfTokens
from forebay.json_numbers import read_json

MAX_DETAIL_CHARS = 300
UNSUPPORTED = "unsupported"
WHY = {
    AnswerCut.cause: "its answer was cut off at max_tokens",
    OutOfTokens.cause: "it used up max_tokens before an answer",
    AnswerRefused.cause: "it refused",
    ContentFiltered.cause: "a content filter stopped its answer",
    EmptyAnswer.cause: "its answer was empty",
    InvalidAnswer.cause: "its answer did not have the form that was asked for",
    UNSUPPORTED: "the texts do not support its answer",
}

Card = TypeVar("Card")


def read_results(
    lines: Iterable[bytes],
    add: Callable[[Any], Card],
    *,
    prefix: str = "",
    answered: Callable[[Card, Any], object] | None = None,
    failed: Callable[[Card, float, str], object] | None = None,
) -> None:
    """Pass the answer of each result to `add`, which returns its card.

    The positions of questions begin with `prefix` and are the results' ids. Lines may be in any order. Runs
    from the beginning repeat ids: the n-th answer is for the n-th card. `answered` receives the card and the
    model's answer, `failed` the card, the question's time and the cause. Other lines are skipped, also if a
    function raises the error of a missing or odd field.
    """
    cards: defaultdict[Any, list[Card]] = defaultdict(list)
    questions = []
    for line in lines:
        try:
            value = read_json(line)
            if answered is not None and str(value.get("position")).startswith(prefix):
                questions.append(value)
            else:
                cards[value.get("id")].append(add(value["answer"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    asked: Counter[str] = Counter()
    for value in questions:
        try:
            of_id = cards.get(value["position"], [])[: asked[value["position"]] + 1]
            asked[value["position"]] += 1
            if "cause" not in value and answered is not None:
                answered(of_id[-1], value["answer"])
            elif failed is not None:
                failed(of_id[-1], value.get("time_ms") or 0, why(value["cause"], value["detail"]))
        except (LookupError, TypeError, AttributeError):
            continue


def why(cause: str, detail: str) -> str:
    return f"{WHY.get(cause, 'the call failed')} ({cause}: {detail[:MAX_DETAIL_CHARS]})"


def readable(time_ms: int) -> str:
    """A time as ISO 8601 in UTC with seconds; milliseconds if it is outside the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(time_ms // 1000, timezone.utc).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
