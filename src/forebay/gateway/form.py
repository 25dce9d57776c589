"""Finds the fields of a form (`multipart/form-data`) in a body in memory.

Searching the largest body for the boundary takes a few milliseconds; streaming parsers call back for every
line end in a recording.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.message import Message

from forebay.gateway.refusal import Refusal

MAX_PARTS = 100
MAX_PART_HEADER_BYTES = 8192
MAX_BOUNDARY_BYTES = 200
"""RFC 2046 allows 70."""
MAX_PARAMETERS = 20
"""Of a header: the time to read them grows with the square of their number."""


@dataclass(frozen=True, slots=True)
class FormField:
    name: str
    begin: int
    end: int
    is_file: bool


def form_fields(content_type: bytes, body: bytes) -> list[FormField]:
    """The form's fields in order. Raises `Refusal` (400) if the body is not a form."""
    boundary = _boundary(content_type)
    delimiter = b"\r\n--" + boundary
    # The first delimiter may be at the very start, without a line end.
    at = 0 if body.startswith(delimiter[2:]) else body.find(delimiter) + 2
    if at == 1:
        raise _not_a_form("its boundary does not occur in the body")
    at += len(delimiter) - 2
    fields: list[FormField] = []
    while not body.startswith(b"--", at):
        head = at if body.startswith(b"\r\n", at) else -1
        begin = body.find(b"\r\n\r\n", head, head + MAX_PART_HEADER_BYTES)
        end = body.find(delimiter, begin + 2)
        if head < 0 or begin < 0 or end < 0:
            raise _not_a_form(
                "a part has no end, no headers of at most 8 KiB, or no line end after a boundary"
            )
        if len(fields) == MAX_PARTS:
            raise _not_a_form(f"it has more than {MAX_PARTS} parts")
        fields.append(_field(body[head + 2 : begin], min(begin + 4, end), end))
        at = end + len(delimiter)
    return fields


def _boundary(content_type: bytes) -> bytes:
    kind = _parameters(content_type)
    boundary = kind.get_param("boundary")
    if kind.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise _not_a_form("its Content-Type must be multipart/form-data with a boundary")
    found = boundary.encode("latin-1", "replace")
    if not 0 < len(found) <= MAX_BOUNDARY_BYTES:
        raise _not_a_form(f"its boundary must have 1 to {MAX_BOUNDARY_BYTES} bytes")
    return found


def _field(head: bytes, begin: int, end: int) -> FormField:
    lines = [line.partition(b":") for line in head.split(b"\r\n")]
    given = [value for name, _, value in lines if name.strip().lower() == b"content-disposition"]
    found = _parameters(given[0]) if len(given) == 1 else Message()
    field = found.get_param("name")
    # If a field has two names, parsers differ in which one they use.
    names = [name for name, _ in found.get_params([]) if name.lower().startswith("name")]
    if not isinstance(field, str) or len(names) != 1:
        raise _not_a_form("a part has not one Content-Disposition with one name")
    return FormField(field, begin, end, found.get_param("filename") is not None)


def _parameters(value: bytes) -> Message:
    if value.count(b";") > MAX_PARAMETERS:
        raise _not_a_form(f"a header has more than {MAX_PARAMETERS} parameters")
    message = Message()
    message["Content-Type"] = " ".join(value.decode("latin-1").split())
    return message


def _not_a_form(why: str) -> Refusal:
    return Refusal(400, "invalid_form", f"the body is not a form: {why}")
