"""Server-sent events, cut out of a byte stream as it arrives.

The format is that of the HTML standard, section 9.2.6 (lines end with LF, CRLF or CR; `data` lines of one
event are joined by LF; comments are skipped). Stricter in one point: a line that starts with no field name
of the standard is an error instead of being ignored, so that bytes which are not an event stream are told
from one that is merely short.
"""

from __future__ import annotations

from forebay.engine.failures import Quoter
from forebay.errors import ProtocolViolation

MAX_EVENT_BYTES = 1 << 20
OTHER_FIELDS = (b"event", b"id", b"retry")
BOM = b"\xef\xbb\xbf"


class SseParser:
    """Feed it bytes in any cut; it gives back the data of each event that is complete.

    Holds at most `max_event_bytes` of an unfinished event. Linear in the number of bytes fed.
    """

    __slots__ = ("_at_start", "_data", "_data_bytes", "_max_event_bytes", "_quote", "_replica", "_rest")

    def __init__(self, *, replica: str, quote: Quoter, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._replica = replica
        self._quote = quote
        self._max_event_bytes = max_event_bytes
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes, in order.

        Raises `ProtocolViolation` where a line is no field of an event stream or an event is too large.
        """
        if b"\n" not in chunk and b"\r" not in chunk:
            self._rest += chunk
            self._bound()
            return []
        text = bytes(self._rest) + chunk if self._rest else chunk
        lines = text.splitlines(keepends=True)
        # The last line is whole only where its end is certain: a final CR may be half of a CRLF.
        self._rest = bytearray(b"" if lines[-1].endswith(b"\n") else lines.pop())
        events: list[bytes] = []
        for ended in lines:
            line = ended.rstrip(b"\r\n")
            if not line:
                if self._data:
                    events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                    self._data = []
                    self._data_bytes = 0
            else:
                self._take(line)
        self._bound()
        return events

    def end(self) -> None:
        """Say that the stream is over. Raises `ProtocolViolation` where its unfinished line is garbage.

        An event without its closing blank line is dropped, as the standard has it.
        """
        line = bytes(self._rest).rstrip(b"\r")
        if line and not any(field.startswith(line[:6]) for field in (b"data", *OTHER_FIELDS)):
            self._take(line)

    def _take(self, line: bytes) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(BOM)
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._data_bytes += len(value) + 1
            self._bound()
        elif name and name not in OTHER_FIELDS:
            said = self._quote(line.decode("utf-8", "replace"))
            raise ProtocolViolation(f"{self._replica} sent what is not an event stream: {said}")

    def _bound(self) -> None:
        if self._data_bytes + len(self._rest) > self._max_event_bytes:
            raise ProtocolViolation(
                f"{self._replica} sent an event of more than {self._max_event_bytes} bytes"
            )
