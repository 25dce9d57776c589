"""What waits in the topics in front of a job: how many records, as somebody has counted them, and what those
will cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from forebay.autoscale.base import Amount, Tokens
from forebay.errors import SettingError

COUNTED_S = 30.0
"""What waits in topics counts for so long after it was counted."""
STANDS_S = 60.0
"""What has not changed for so long, though the job had nothing else to do, is not there for it to read."""
Count = Annotated[int, Field(ge=0, le=10**15)]


@dataclass(frozen=True, slots=True)
class TopicBacklog:
    """`records` that wait, and their tokens as estimated; None where nothing is known to estimate from.

    `age_s`: how long ago the records were counted.
    """

    records: Count
    prompt_tokens: Count | None
    completion_tokens: Count | None
    age_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]


_BACKLOG: TypeAdapter[TopicBacklog | None] = TypeAdapter(TopicBacklog | None)


def encode_backlog(backlog: TopicBacklog | None) -> bytes:
    """The backlog as JSON; None: it is not known."""
    return orjson.dumps(backlog)


def decode_backlog(data: bytes) -> TopicBacklog | None:
    """The backlog of `encode_backlog`. Raises `SettingError` for what is none."""
    try:
        return _BACKLOG.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise SettingError(f"{where}: {first['msg']}") from None


@dataclass(frozen=True, slots=True)
class CostMemory:
    """Tokens of a record that waits, as last estimated."""

    prompt: Amount
    output: Amount


_MEMORY: TypeAdapter[CostMemory] = TypeAdapter(CostMemory)


class RecordCost:
    """What a record in a topic will cost: as last estimated, in this run or an earlier one; before that
    `assumed` tokens for its prompt, and as many for its answer."""

    def __init__(self, assumed: float) -> None:
        self._each: CostMemory | None = None
        self._assumed = assumed

    def tokens(self, backlog: TopicBacklog) -> Tokens:
        """All that waits, and what it will cost."""
        prompt, output, records = backlog.prompt_tokens, backlog.completion_tokens, backlog.records
        if prompt is not None and output is not None:
            if records:
                self._each = CostMemory(prompt / records, output / records)
            return Tokens(records, prompt, output)
        each = self._each or CostMemory(self._assumed, self._assumed)
        return Tokens(records, round(records * each.prompt), round(records * each.output))

    def remembers(self) -> Mapping[str, object]:
        """What outlives a run, for the same model."""
        return {} if self._each is None else asdict(self._each)

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on with what was remembered. Raises `ValueError` where it is not that, and is then as it was."""
        if memory:
            self._each = _MEMORY.validate_python(memory)


class TopicQueue:
    """What waits in the topics as last heard, for as long as that is young. `assumed`: as of `RecordCost`,
    which is `cost`."""

    def __init__(self, assumed: float) -> None:
        self.cost = RecordCost(assumed)
        self._waits: Tokens | None = None
        self._counted_s = -math.inf

    def heard(self, backlog: TopicBacklog, now_s: float) -> None:
        """So much waits."""
        self._waits = self.cost.tokens(backlog)
        self._counted_s = now_s - backlog.age_s

    def waits(self, now_s: float) -> Tokens | None:
        """All that waits; None where it was not counted of late."""
        return None if now_s - self._counted_s > COUNTED_S else self._waits


class StandingRecords:
    """Tells records that wait from those that only seem to: each end of a transaction takes an offset, so
    that a topic written in transactions always shows a record or so per partition.

    What has not changed for `STANDS_S`, while the job had nothing else to do, does not count. All of it
    counts again once it shrinks: then there were records among it after all.
    """

    def __init__(self) -> None:
        self._standing = self._last = 0.0
        self._since_s: float | None = None

    def not_counted(self) -> None:
        """Nobody knows what waits now, as while Kafka is away and no record can be read: this time does not
        make anything stand."""
        self._since_s = None

    def take_off(self, waits: Tokens, now_s: float, *, idle: bool) -> Tokens:
        """`waits` without what stands; `idle`: the job has nothing else to do."""
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
