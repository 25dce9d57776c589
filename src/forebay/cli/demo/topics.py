"""Topics of the demo: prompts that suit the model, and finding the topic that breaks out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from forebay.connectors.base import SourceSettings
from forebay.connectors.generator.settings import GeneratorSource
from forebay.connectors.generator.source import START_MS
from forebay.engine.launch.environment import DEFAULT_MODEL
from forebay.records import JSON

SENTIMENTS = ("positive", "negative", "neutral")

WORDS: dict[str, tuple[int, float]] = {
    "outage": (48579, -5.41),
    "weather": (3947, 1.90),
    "football": (13159, 1.53),
    "transit": (14584, -1.92),
    "food": (1114, 2.73),
    "music": (2477, 2.49),
    "school": (1125, 0.51),
    "pets": (9903, -1.83),
}
"""The default model's token for a topic, and its bias for that token after an empty post.

The bias is the log probability after the prompt minus the mean of the eight, over six such texts ("N/A",
"[MASK]", "Hello.", "Just saw this.", "Update: more soon.", "FYI something at the station this morning.").
Subtracting it is contextual calibration (Zhao et al., Calibrate Before Use, 2021).
"""
PREFERENCE = 60.0
"""Lifts the eight tokens above all others; engines allow a bias of up to 100."""


def weighs_topics(model: str) -> bool:
    return model == DEFAULT_MODEL


def asks_by_likelihood(text_field: str) -> dict[str, Any]:
    """Pipeline settings that ask which of `TOPICS` is the likeliest next word after the post.

    A model of this size writes valid JSON but fills it badly. Its likelihoods are mostly right once its bias
    is subtracted. An answer is one token: the topic with a leading space.
    """
    bias = {str(token): round(PREFERENCE - habit, 2) for token, habit in WORDS.values()}
    return {
        "prompt": f"Post: {_field(text_field)}\nThe topic of this post is",
        "engine": {"api": "completions"},
        "sampling": {"max_tokens": 1, "extra": {"logit_bias": bias}},
    }


def asks_by_schema(text_field: str, topics: Sequence[str]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"sentiment": {"enum": list(SENTIMENTS)}, "topic": {"enum": [*topics, "other"]}},
        "required": ["sentiment", "topic"],
        "additionalProperties": False,
    }
    return {
        "messages": [
            {
                "role": "system",
                "content": "You label short posts. Give the sentiment and the topic of the post as JSON.",
            },
            {"role": "user", "content": f"Post: {_field(text_field)}"},
        ],
        "engine": {},
        "output": {"schema": schema},
        "sampling": {"max_tokens": 48},
    }


def answered_topic(answer: JSON) -> str:
    topic = answer.get("topic") if isinstance(answer, dict) else answer
    return (topic.strip() if isinstance(topic, str) else "") or "other"


def answer_text(answer: JSON) -> str:
    return ", ".join(map(str, answer.values())) if isinstance(answer, dict) else str(answer).strip()


def _field(name: str) -> str:
    return "{{ event[" + orjson.dumps(name).decode() + "] }}"


SLICES = 24
USUAL = 2.0
"""A slice belongs to an outbreak if it has more than this many times the topic's mean."""
MIN_SCORE = 6.0
"""Minimum excess of posts in an outbreak; chance alone hardly reaches it."""


@dataclass(frozen=True, slots=True)
class Outbreak:
    """A period with far more posts than usual about a topic; `factor`: their rate over that of the rest."""

    topic: str
    start_ms: int
    end_ms: int
    events: int | None = None
    factor: float | None = None

    def overlaps(self, other: Outbreak) -> bool:
        """Whether both have the same topic and share at least half of the longer one's time."""
        shared = min(self.end_ms, other.end_ms) - max(self.start_ms, other.start_ms)
        longer = max(self.end_ms - self.start_ms, other.end_ms - other.start_ms)
        return self.topic == other.topic and 2 * shared >= longer


def slice_of(time_ms: int, first_ms: int, last_ms: int) -> int:
    return (time_ms - first_ms) // slice_ms(first_ms, last_ms)


def slice_ms(first_ms: int, last_ms: int) -> int:
    return max(1, (last_ms - first_ms) // SLICES + 1)


def find_outbreak(posts: Iterable[tuple[int, str]]) -> Outbreak | None:
    """Of all topics, the run of slices with the greatest sum of counts above `USUAL` (Kadane)."""
    known = list(posts)
    if not known:
        return None
    times = [time_ms for time_ms, _ in known]
    first, last = min(times), max(times)
    width = slice_ms(first, last)
    counts: dict[str, Counter[int]] = {}
    for time_ms, topic in known:
        counts.setdefault(topic, Counter())[slice_of(time_ms, first, last)] += 1
    slices = (last - first) // width + 1
    best, found = MIN_SCORE, None
    for topic, at in counts.items():
        row = [at[i] for i in range(slices)]
        score, low, high = _heaviest_run([count - USUAL * sum(row) / slices for count in row])
        if score > best:
            within, outside = sum(row[low:high]), sum(row) - sum(row[low:high])
            usual = max(outside, 1) / max(1, slices - (high - low))
            best = score
            found = Outbreak(
                topic, first + low * width, first + high * width, within, within / (high - low) / usual
            )
    return found


def planted_outbreak(source: SourceSettings) -> Outbreak | None:
    if not isinstance(source, GeneratorSource) or source.burst is None:
        return None
    burst = source.burst
    start_ms = START_MS + round(burst.start_s * 1000)
    return Outbreak(burst.topic, start_ms, start_ms + round(burst.duration_s * 1000))


def _heaviest_run(values: Sequence[float]) -> tuple[float, int, int]:
    """The greatest sum of a run of `values`, and its half-open range."""
    best, sum_, low = (0.0, 0, 0), 0.0, 0
    for i, value in enumerate(values):
        if sum_ <= 0:
            sum_, low = 0.0, i
        sum_ += value
        if sum_ > best[0]:
            best = (sum_, low, i + 1)
    return best
