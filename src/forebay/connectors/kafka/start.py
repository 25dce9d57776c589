"""Where a job starts in its topics, and the names of topics in positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Generations = Mapping[str, tuple[str, ...]]
"""Ids by topic, oldest first; repeated if the topic's offsets restarted."""


def marked(topic: str, generations: Generations) -> str:
    """For positions: `tickets`, or `tickets~2` for the second topic of that name. No topic's name can
    contain `~`.
    """
    generation = len(generations.get(topic, ()))
    return topic if generation < 2 else f"{topic}~{generation}"


@dataclass(frozen=True, slots=True)
class TopicStart:
    """How a job starts in its topics.

    `uid`: of Flink's source; None if the checkpoint's has none. If it differs from the checkpoint's, a
    restored job starts at the committed offsets instead. `watched`: a supervisor restarts the job at other
    offsets if a reader loses its position.
    """

    uid: str | None = "kafka"
    generations: Generations = field(default_factory=dict)
    watched: bool = True


AS_FIRST = TopicStart()
