"""The backlog in the topics of a job: how many records, and their expected cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from forebay.errors import SettingError
from forebay.fleet.autoscale.base import Amount, Tokens

COUNTED_S = 30.0
STANDS_S = 60.0
"""Records that stay for this time, though the job is idle, are not readable."""
Count = Annotated[int, Field(ge=0, le=10**15)]


@dataclass(frozen=True, slots=True)
class TopicBacklog:
    """`records` that wait, and their estimated tokens; None without a basis. `age_s`: since they were
    counted."""

    records: Count
    prompt_tokens: Count | None
    completion_tokens: Count | None
    age_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]


_BACKLOG: TypeAdapter[TopicBacklog | None] = TypeAdapter(TopicBacklog | None)


def encode_backlog(backlog: TopicBacklog | None) -> bytes:
    return orjson.dumps(backlog)


def decode_backlog(data: bytes) -> TopicBacklog | None:
    try:
        return _BACKLOG.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise SettingError(f"{where}: {first['msg']}") from None


@dataclass(frozen=True, slots=True)
class CostMemory:
    prompt: Amount
    output: Amount


_MEMORY: TypeAdapter[CostMemory] = TypeAdapter(CostMemory)


class RecordCost:
    """The expected cost of a record: as last estimated; before that `assumed` tokens for its prompt and its
    answer each."""

    def __init__(self, assumed: float) -> None:
        self._each: CostMemory | None = None
        self._assumed = assumed

    def tokens(self, backlog: TopicBacklog) -> Tokens:
        prompt, output, records = backlog.prompt_tokens, backlog.completion_tokens, backlog.records
        if prompt is not None and output is not None:
            if records:
                self._each = CostMemory(prompt / records, output / records)
            return Tokens(records, prompt, output)
        each = self._each or CostMemory(self._assumed, self._assumed)
        return Tokens(records, round(records * each.prompt), round(records * each.output))

    def remembers(self) -> Mapping[str, object]:
        return {} if self._each is None else asdict(self._each)

    def recall(self, memory: Mapping[str, object]) -> None:
        if memory:
            self._each = _MEMORY.validate_python(memory)


class TopicQueue:
    """The last reported backlog of the topics, while it is recent."""

    def __init__(self, assumed: float) -> None:
        self.cost = RecordCost(assumed)
        self._waits: Tokens | None = None
        self._counted_s = -math.inf

    def observe(self, backlog: TopicBacklog, now_s: float) -> None:
        self._waits = self.cost.tokens(backlog)
        self._counted_s = now_s - backlog.age_s

    def waits(self, now_s: float) -> Tokens | None:
        """The backlog; None if there is no recent count."""
        return None if now_s - self._counted_s > COUNTED_S else self._waits


class StandingRecords:
    """Recognises records that only seem to wait: each end of a transaction takes an offset, so a topic
    written in transactions always shows about one record per partition.

    Records that stay for `STANDS_S`, while the job is idle, do not count, until their number shrinks: then
    there were real ones among them.
    """

    def __init__(self) -> None:
        self._standing = self._last = 0.0
        self._since_s: float | None = None

    def not_counted(self) -> None:
        """This time is not idle time: nothing can be read, as while Kafka is down."""
        self._since_s = None

    def take_off(self, waits: Tokens, now_s: float, *, idle: bool) -> Tokens:
        """`waits` without such records; `idle`: the job has nothing else to do."""
        records = waits.requests
        if records < self._standing:
            self._standing = 0.0
        if not idle or records != self._last or self._since_s is None:
            self._since_s = now_s
        self._last = records
        if now_s - self._since_s >= STANDS_S:
            self._standing = records
        if not self._standing:
            return waits
        return waits.times((records - self._standing) / records)
