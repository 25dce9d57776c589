"""The Kafka record for a result or a dead letter, its size as Kafka counts it, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from forebay.connectors.formats import dead_letter_json, result_json
from forebay.errors import SettingError
from forebay.records import DeadLetter, Result

REQUEST, BUFFER = "max.request.size", "buffer.memory"
DEFAULTS = {REQUEST: 1_048_576, BUFFER: 33_554_432}
MIN_LIMIT_BYTES = 8_192
OVERHEAD_BYTES = 61 + 21
"""Of a batch (Kafka's `DefaultRecordBatch`) and of a record."""


def record_bytes(key: bytes | None, value: bytes | None, headers: Mapping[str, bytes | None]) -> int:
    """What Kafka's producer compares with `max.request.size`."""
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
    """`given`: set, not Kafka's default."""

    bytes: int
    name: str = REQUEST
    given: bool = False

    @classmethod
    def of(cls, properties: Mapping[str, object]) -> RecordLimit:
        """Raises `SettingError`."""
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
        sends."""
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


ID_HEADER = "forebay-id"
CAUSE_HEADER = "forebay-cause"
TEXTS = ("cause", "detail", "id", "key", "position")
MAX_TEXT_CHARS = 128

Headers = dict[str, "bytes | None"]
Record = tuple["bytes | None", bytes, Headers]


def record_of(output: Result | DeadLetter) -> Record:
    value = result_json(output) if isinstance(output, Result) else dead_letter_json(output)
    return output.record_key, value.encode(), headers_of(output)


def headers_of(output: Result | DeadLetter) -> Headers:
    headers = dict(output.headers)
    # A record that could not be read has no id, only a position.
    id = output.position if output.id is None else output.id
    if id is not None:
        headers[ID_HEADER] = id.encode("utf-8", "replace")
    if isinstance(output, DeadLetter):
        headers[CAUSE_HEADER] = output.cause.encode("utf-8", "replace")
    return headers


def fitting_record(letter: DeadLetter, limit_bytes: int) -> Record:
    """Cuts the input's end, then the largest other parts. `cut_bytes` counts missing bytes by part."""
    whole = record_of(letter)
    if record_bytes(*whole) <= limit_bytes:
        return whole
    cut: dict[str, int] = {}

    def made(input_bytes: int) -> Record:
        value = dead_letter_json(letter, input_bytes=input_bytes, cut_bytes=cut)
        return letter.record_key, value.encode(), headers_of(letter)

    def fits(input_bytes: int) -> bool:
        return record_bytes(*made(input_bytes)) <= limit_bytes

    sizes = _sizes(letter)
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if fits(0):
            break
        letter = _without(letter, name)
        cut[name] = sizes[name] - _sizes(letter)[name]
    kept, too_many = 0, min(len(letter.raw), limit_bytes) + 1
    while too_many - kept > 1:
        middle = (kept + too_many) // 2
        if fits(middle):
            kept = middle
        else:
            too_many = middle
    return made(kept)


def _sizes(letter: DeadLetter) -> dict[str, int]:
    texts = {name: (getattr(letter, name) or "").encode("utf-8", "replace") for name in TEXTS}
    headers = sum(
        len(name.encode("utf-8", "replace")) + len(of or b"") for name, of in letter.headers.items()
    )
    sizes = {name: len(text) for name, text in texts.items()}
    return {**sizes, "headers": headers, "record_key": len(letter.record_key or b"")}


def _without(letter: DeadLetter, name: str) -> DeadLetter:
    if name == "headers":
        return replace(letter, headers={})
    if name == "record_key":
        return replace(letter, record_key=None)
    return replace(letter, **{name: getattr(letter, name) and getattr(letter, name)[:MAX_TEXT_CHARS]})
