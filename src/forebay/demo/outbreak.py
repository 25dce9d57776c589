"""The topic that breaks out in a short recorded stream, found in counts over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forebay.connectors.base import SourceSettings
from forebay.connectors.generator.settings import GeneratorSource
from forebay.connectors.generator.source import START_MS

SLICES = 24
USUAL = 2.0
"""A slice counts for an outbreak where it holds more than so many times the topic's mean."""
LEAST_SCORE = 6.0
"""By how many posts an outbreak must exceed that in all; chance alone hardly reaches it."""


@dataclass(frozen=True, slots=True)
class Outbreak:
    """A stretch of event time in which far more posts than usual are about one topic.

    `events`: the posts about it in that stretch; `factor`: how many times as many as usual, by the rate of
    the rest of the stream. None for what is not known.
    """

    topic: str
    start_ms: int
    end_ms: int
    events: int | None = None
    factor: float | None = None

    def overlaps(self, other: Outbreak) -> bool:
        """Whether both are of one topic and share at least half of the time of the longer one."""
        shared = min(self.end_ms, other.end_ms) - max(self.start_ms, other.start_ms)
        longer = max(self.end_ms - self.start_ms, other.end_ms - other.start_ms)
        return self.topic == other.topic and 2 * shared >= longer


def slice_of(time_ms: int, first_ms: int, last_ms: int) -> int:
    """Which of `SLICES` equal stretches from `first_ms` to `last_ms` `time_ms` lies in."""
    return (time_ms - first_ms) // slice_ms(first_ms, last_ms)


def slice_ms(first_ms: int, last_ms: int) -> int:
    """How long one of `SLICES` equal stretches is."""
    return max(1, (last_ms - first_ms) // SLICES + 1)


def find_outbreak(posts: Iterable[tuple[int, str]]) -> Outbreak | None:
    """The outbreak among posts, each a time and a topic; None where no topic has one.

    For each topic the run of slices with the greatest sum of counts above `USUAL` times the mean (Kadane's
    algorithm for the maximum-sum run), and of all topics the one whose run sums to the most.
    """
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
    best, found = LEAST_SCORE, None
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
    """What is planted in the posts of `source`; None where it makes up none."""
    if not isinstance(source, GeneratorSource) or source.burst is None:
        return None
    burst = source.burst
    start_ms = START_MS + round(burst.start_s * 1000)
    return Outbreak(burst.topic, start_ms, start_ms + round(burst.duration_s * 1000))


def _heaviest_run(values: Sequence[float]) -> tuple[float, int, int]:
    """The greatest sum of a run of `values`, and the run as a half-open range."""
    best, sum_, low = (0.0, 0, 0), 0.0, 0
    for i, value in enumerate(values):
        if sum_ <= 0:
            sum_, low = 0.0, i
        sum_ += value
        if sum_ > best[0]:
            best = (sum_, low, i + 1)
    return best
