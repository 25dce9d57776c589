"""How the demo asks a model for the topic of a post: in the way that the model is good at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from forebay.engine.launch.model import DEFAULT_MODEL
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
"""The default model's token for a topic, and how much likelier than the others it holds it for a post that
says nothing: the log probability after the prompt, less the mean of the eight, over six such texts ("N/A",
"[MASK]", "Hello.", "Just saw this.", "Update: more soon.", "FYI something at the station this morning.").

Taking that off is contextual calibration (Zhao et al., Calibrate Before Use, 2021)."""
PREFERENCE = 60.0
"""What lifts the eight tokens above all others; engines take a bias up to 100."""


def weighs_topics(model: str) -> bool:
    """Whether `model` is the one that `WORDS` is of."""
    return model == DEFAULT_MODEL


def asks_by_likelihood(text_field: str) -> dict[str, Any]:
    """Keys of a pipeline that asks which of `TOPICS` is the likeliest next word after the post.

    A model of this size writes forms well and fills them badly; but what it takes for likely is mostly right,
    once its habits are taken off. One token per answer, which is the topic with a space before it.
    """
    bias = {str(token): round(PREFERENCE - habit, 2) for token, habit in WORDS.values()}
    return {
        "prompt": f"Post: {_field(text_field)}\nThe topic of this post is",
        "engine": {"api": "completions"},
        "sampling": {"max_tokens": 1, "extra": {"logit_bias": bias}},
    }


def asks_by_schema(text_field: str, topics: Sequence[str]) -> dict[str, Any]:
    """Keys of a pipeline that asks a chat model for two labels as JSON."""
    return {
        "messages": [
            {
                "role": "system",
                "content": "You label short posts. Give the sentiment and the topic of the post as JSON.",
            },
            {"role": "user", "content": f"Post: {_field(text_field)}"},
        ],
        "engine": {},
        "output": {"schema": answer_schema(topics)},
        "sampling": {"max_tokens": 48},
    }


def answer_schema(topics: Sequence[str]) -> dict[str, JSON]:
    """Two labels from fixed sets."""
    return {
        "type": "object",
        "properties": {"sentiment": {"enum": list(SENTIMENTS)}, "topic": {"enum": [*topics, "other"]}},
        "required": ["sentiment", "topic"],
        "additionalProperties": False,
    }


def answered_topic(answer: JSON) -> str:
    """The topic in an answer to either question; `other` where there is none."""
    topic = answer.get("topic") if isinstance(answer, dict) else answer
    return (topic.strip() if isinstance(topic, str) else "") or "other"


def answered_words(answer: JSON) -> str:
    """An answer to either question in words."""
    return ", ".join(map(str, answer.values())) if isinstance(answer, dict) else str(answer).strip()


def _field(name: str) -> str:
    return "{{ event[" + orjson.dumps(name).decode() + "] }}"
