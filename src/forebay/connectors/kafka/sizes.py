"""The size of a record as Kafka counts it, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.errors import SettingError

REQUEST, BUFFER = "max.request.size", "buffer.memory"
DEFAULTS = {REQUEST: 1_048_576, BUFFER: 33_554_432}
"""Properties of Kafka's producer that limit a record."""
MIN_LIMIT_BYTES = 8_192
"""A dead letter without its input, key and headers always fits."""
OVERHEAD_BYTES = 61 + 21
"""Of a batch, and the maximum for a record's own numbers: Kafka's `DefaultRecordBatch` and `DefaultRecord`.
"""


def record_bytes(key: bytes | None, value: bytes | None, headers: Mapping[str, bytes | None]) -> int:
    """Kafka's producer compares this with `max.request.size`: the upper bound of an uncompressed batch
    with only this record.
    """
    size = OVERHEAD_BYTES + _with_length(key) + _with_length(value) + _varint_bytes(len(headers))
    for name, content in headers.items():
        size += _with_length(name.encode("utf-8", "replace")) + _with_length(content)
    return size


def _with_length(data: bytes | None) -> int:
    return 1 if data is None else _varint_bytes(len(data)) + len(data)


def _varint_bytes(number: int) -> int:
    return max(1, -(-((number << 1).bit_length()) // 7))


@dataclass(frozen=True, slots=True)
class RecordLimit:
    """`name`: the property with the smallest limit; `given`: set, not Kafka's default."""

    bytes: int
    name: str = REQUEST
    given: bool = False

    @classmethod
    def of(cls, properties: Mapping[str, object]) -> RecordLimit:
        """Raises `SettingError` if a limit is not a number or too small for dead letters."""
        limits = [
            cls(_size(name, properties.get(name, default)), name, name in properties)
            for name, default in DEFAULTS.items()
        ]
        return min(limits, key=lambda limit: limit.bytes)

    def exceeded(self, topic: str, size: int) -> str:
        return (
            f"the record has {size} bytes (key, value and headers), but at most {self.bytes} go to topic "
            f"{topic!r} ({self.name}{'' if self.given else ', the default'})"
        )

    def check(self, topic: str, taken_bytes: int | None, where: str) -> None:
        """Raise `SettingError`, naming the key `where`, if `topic` rejects records that the producer
        sends: they would fail the job. `taken_bytes`: the topic's `max.message.bytes`; None: unknown.
        Ignores compression.
        """
        if taken_bytes is None or self.bytes <= taken_bytes:
            return
        raise SettingError(
            f"{where}: expected {self.name} of at most {taken_bytes}, the max.message.bytes of topic "
            f"{topic!r}, found {self.bytes}{'' if self.given else ', the default'}; set "
            f"{where}: {{{REQUEST}: {taken_bytes}}}, or raise the limit of the topic"
        )


def _size(name: str, value: object) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isascii() or not text.isdigit():
        raise SettingError(f"{name}: expected a whole number of bytes, found {text[:80]!r}")
    if int(text) < MIN_LIMIT_BYTES:
        raise SettingError(
            f"{name}: expected at least {MIN_LIMIT_BYTES} bytes, so that every dead letter fits without its "
            f"input; found {text[:80]}"
        )
    return int(text)
