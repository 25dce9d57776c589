"""The Kafka record for a result or a dead letter."""

from __future__ import annotations

from dataclasses import replace

from forebay.connectors.formats import dead_letter_json, result_json
from forebay.connectors.kafka.sizes import record_bytes
from forebay.records import DeadLetter, Result

ID_HEADER = "forebay-id"
CAUSE_HEADER = "forebay-cause"
TEXTS = ("cause", "detail", "id", "key", "position")
MAX_TEXT_CHARS = 128
"""Length to which a dead letter's texts are cut if necessary."""

Headers = dict[str, "bytes | None"]
Record = tuple["bytes | None", bytes, Headers]
"""Key, value and headers."""


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
    """`record_of`, cut to `limit_bytes` (at least `MIN_LIMIT_BYTES`).

    Cuts no more of the input's end than needed. If it does not fit without input, cuts the largest other
    parts first: drops the original headers and key, shortens texts. `cut_bytes` counts missing bytes by part.
    """
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
    """Of each part that can be cut, except the input."""
    texts = {name: (getattr(letter, name) or "").encode("utf-8", "replace") for name in TEXTS}
    headers = sum(
        len(name.encode("utf-8", "replace")) + len(of or b"") for name, of in letter.headers.items()
    )
    sizes = {name: len(text) for name, text in texts.items()}
    return {**sizes, "headers": headers, "record_key": len(letter.record_key or b"")}


def _without(letter: DeadLetter, name: str) -> DeadLetter:
    """Shortens a text, drops other parts."""
    if name == "headers":
        return replace(letter, headers={})
    if name == "record_key":
        return replace(letter, record_key=None)
    return replace(letter, **{name: getattr(letter, name) and getattr(letter, name)[:MAX_TEXT_CHARS]})
