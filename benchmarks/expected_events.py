"""Trends and topics as jobs to kill: their events, and the expected output, computed without Flink."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from benchmarks.killable import KillableEngine
from benchmarks.tally import NUMBER, Expected
from forebay.apps.topics import settings as topics
from forebay.apps.topics.embedding import NoEmbedding
from forebay.apps.topics.finder import FOUND, TopicStage, assignments_of, shard_event_of, text_bytes
from forebay.apps.trends import reason
from forebay.apps.trends import settings as trends
from forebay.apps.trends.stages import BookStage, CountStage, RateStage, event_of, post_bytes
from forebay.flink.shards import shard_of
from forebay.records import Event, Result
from forebay.stateful.stream_time import StreamTime
from forebay.testing.answers import answer_to

SPEED = 5.0
"""Replay speed: the input must outlast the kills."""
PER_S = 20
BACKGROUND_PER_S = 13
SHARDS = 8
MAX_TOKENS = 64
END_MS = 2**53
FILE = "events.jsonl"
"""Name of the input, which is part of positions."""

AnswersById = dict[str, Any]
"""Answers by result id."""


@dataclass(frozen=True, slots=True)
class TrendsJob:
    """A burst every two seconds over a background of common words."""

    settings: trends.Trends = field(default_factory=trends.Trends)
    in_order = True
    events_a_call = 1
    events_per_kill = 2500

    def events(self, count: int, seed: int) -> Sequence[dict[str, Any]]:
        draw = random.Random(f"trends:{seed}")
        words = [f"word{index}" for index in range(300)]
        posts: list[tuple[int, str]] = []
        for second in range(count // BACKGROUND_PER_S + 1):
            posts += [
                (second * 1000 + draw.randrange(1000), " ".join(draw.choices(words, k=6)))
                for _ in range(BACKGROUND_PER_S)
            ]
            if second % 2 == 0 and second > 60:
                posts += [
                    (
                        second * 1000 + draw.randrange(10_000),
                        f"{draw.choice(words)} news{second} about it{second}",
                    )
                    for _ in range(PER_S * 2 // 3)
                ]
        ordered = sorted(posts)[:count]
        return [{NUMBER: n, "at": at, "text": text} for n, (at, text) in enumerate(ordered)]

    def document(self) -> dict[str, Any]:
        return {"application": {"type": "trends"}, "shards": SHARDS, "sampling": {"max_tokens": MAX_TOKENS}}

    def source(self) -> dict[str, Any]:
        return {"time": "at", "time_format": "unix_ms", "replay": {"speed": SPEED}}

    def expected(self, events: Sequence[dict[str, Any]], engine: KillableEngine) -> Expected:
        return by_id(self.answers_by_id(events), "why", engine)

    def answers_by_id(
        self, events: Sequence[dict[str, Any]], position: Callable[[int], str] = lambda n: f"{FILE}@{n + 1}"
    ) -> AnswersById:
        """The output of an uninterrupted run."""
        find = self.settings.find
        time = StreamTime(self.settings.tolerance)
        count = [CountStage(find, shard, SHARDS) for shard in range(SHARDS)]
        rate = [RateStage(find, SHARDS) for _ in range(SHARDS)]
        book = BookStage(find)
        judged = [each for event in events for each in time.see(event["at"], str(event[NUMBER]).encode())]
        for each in [*judged, *time.end()]:
            event = events[int(each.data)]
            if each.verdict == "in time":
                stage = count[shard_of(position(event[NUMBER]), SHARDS)]
                for shard, data in stage.take(post_bytes(each.time_ms, event["text"])):
                    rate[shard].take(data)
        for shard, data in (output for stage in count for output in stage.close(END_MS)):
            rate[shard].take(data)
        for _, data in (output for stage in rate for output in stage.close(END_MS)):
            book.take(data)
        found = [event_of(data) for _, data in (*book.close(END_MS), *book.finish())]
        asked = ((trends.to_prompt_event(event), trends.why) for event in found)
        return _answers_by_id(map(trends.to_result, found), asked, reason.PROMPT, reason.SCHEMA)


@dataclass(frozen=True, slots=True)
class TopicsJob:
    """A new subject every forty texts; texts are compared by their words."""

    settings: topics.TopicsSpec = field(default_factory=lambda: topics.TopicsSpec(embeddings="words"))
    in_order = True
    events_a_call = 1
    events_per_kill = 3000

    def events(self, count: int, seed: int) -> Sequence[dict[str, Any]]:
        draw = random.Random(f"topics:{seed}")
        found = []
        for n in range(count):
            subject = n // 40 - draw.randrange(3)
            kept = [f"s{subject}w{index}" for index in draw.sample(range(6), 4)]
            text = (
                " ".join([*kept, f"noise{draw.randrange(500)}"]) if draw.random() < 0.8 else f"noise{n} of{n}"
            )
            found.append({NUMBER: n, "at": n * 1000 // PER_S, "text": text})
        return found

    def document(self) -> dict[str, Any]:
        application = {"type": "topics", "embeddings": "words"}
        return {"application": application, "shards": SHARDS, "sampling": {"max_tokens": MAX_TOKENS}}

    def source(self) -> dict[str, Any]:
        return {"time": "at", "time_format": "unix_ms", "replay": {"speed": SPEED}}

    def expected(self, events: Sequence[dict[str, Any]], engine: KillableEngine) -> Expected:
        return by_id(self.answers_by_id(events), "label", engine)

    def answers_by_id(self, events: Sequence[dict[str, Any]]) -> AnswersById:
        """The output of an uninterrupted run."""
        found = [shard_event_of(data) for kind, data in self._outputs(events) if kind == FOUND]
        asked = ((topics.to_prompt_event(event), topics.labelled) for event in found)
        return _answers_by_id(map(topics.to_result, found), asked, topics.PROMPT, topics.SCHEMA)

    def assigned(self, events: Sequence[dict[str, Any]]) -> dict[str, str | None]:
        batches = [assignments_of(data) for kind, data in self._outputs(events) if kind != FOUND]
        return {each.id: each.topic for batch in batches for each in batch}

    def _outputs(self, events: Sequence[dict[str, Any]]) -> list[tuple[int, bytes]]:
        stage = TopicStage(self.settings.find, 0, NoEmbedding().embed, NoEmbedding.width)
        texts = (text_bytes(event["at"], event["text"], id=str(event[NUMBER])) for event in events)
        return [*(each for text in texts for each in stage.take(text)), *stage.finish()]


def _answers_by_id(
    results: Iterable[Result],
    asked: Iterable[tuple[Event | None, Callable[[Result], Result]]],
    prompt: Any,
    schema: dict[str, Any],
) -> AnswersById:
    found = {result.id: _plain(result.answer) for result in results}
    for question, answered in asked:
        if question is not None:
            result = answered(_answered(question, prompt, schema))
            found[result.id] = _plain(result.answer)
    return found


def _answered(question: Event, prompt: Any, schema: dict[str, Any]) -> Result:
    from forebay.flink.request_handler import result
    from forebay.records import Completion, KeyedEvent, Timing, Usage

    messages = prompt.render(question.fields, key="", time_ms=question.time_ms)
    text, reason = answer_to("\n".join(each.content for each in messages), schema, max_tokens=MAX_TOKENS)
    item = KeyedEvent(question.position or "", "", question, 0)
    completion = Completion(text, reason, Usage(), Timing(0.0, 0.0))
    return result(item, completion, orjson.loads(text), attempts=1)


def _plain(answer: Any) -> Any:
    return orjson.loads(orjson.dumps(answer))


def by_id(answers_by_id: AnswersById, by_model: str, engine: KillableEngine) -> Expected:
    """Each result once, with exactly its answer; a real engine's words in answers of the kind `by_model` are
    unknown."""
    scripted = engine.calls() is not None

    def of_result(line: dict[str, Any]) -> str | None:
        id, answer = line.get("id"), line.get("answer")
        if not isinstance(id, str) or id not in answers_by_id:
            return None
        free = not scripted and isinstance(answer, dict) and answer.get("kind") == by_model
        return id if free or answer == answers_by_id[id] else None

    return Expected(len(answers_by_id), of_result)
