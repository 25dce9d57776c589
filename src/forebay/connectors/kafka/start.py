"""How a job begins in its topics, and what positions in topics are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Generations = Mapping[str, tuple[str, ...]]
"""The ids that each topic has had, oldest first. One comes again if the topic's offsets started again."""


def marked(topic: str, generations: Generations) -> str:
    """The topic as positions name it: `tickets`, and `tickets~2` for the second topic of that name. `~` is in
    no topic's name."""
    generation = len(generations.get(topic, ()))
    return topic if generation < 2 else f"{topic}~{generation}"


@dataclass(frozen=True, slots=True)
class TopicStart:
    """How a job begins in its topics.

    `uid` names Flink's source, None if the checkpoint's has no name. A restored job that gets another name
    than its checkpoint has begins at the committed offsets instead of the checkpoint's. `watched`: somebody
    restarts the job at other offsets if a reader loses its place.
    """

    uid: str | None = "kafka"
    generations: Generations = field(default_factory=dict)
    watched: bool = True


AS_FIRST = TopicStart()
