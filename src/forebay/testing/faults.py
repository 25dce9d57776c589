"""Which call fails, and how: by a marker in the prompt or by a share of all calls."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forebay.testing.delays import unit

STATUSES = {"400", "401", "403", "404", "422", "429", "500", "502", "503", "504"}
FAULTS = STATUSES | {"too_long", "hang", "refuse", "cut", "garbage", "binary", "huge", "error", "schema"}
"""A status; `too_long`: 400 with vLLM's words for a prompt beyond the context; `hang`: no answer ever;
`refuse`: the connection closes before the answer; `cut`: it closes in mid-answer; `garbage`: events that are
not JSON; `binary`: bytes that are no event stream; `huge`: an answer without end; `error`: an error object in
mid-stream; `schema`: a complete answer that breaks the schema."""

MARKER = re.compile(r"\(\(fault:([a-z0-9_]+?)(?:x([0-9]{1,6}))?\)\)")


@dataclass(frozen=True, slots=True)
class Faults:
    """Which calls fail, and how.

    A fault is an HTTP status of `400`, `401`, `403`, `404`, `422`, `429`, `500`, `502`, `503`, `504`, or one
    of `too_long` (a 400 for a prompt beyond the context), `hang` (no answer ever), `refuse` (the connection
    closes before the answer), `cut` (it closes in the middle of it), `garbage` (events that are not JSON),
    `binary` (no event stream at all), `huge` (an answer without end), `error` (an error object in the stream)
    and `schema` (a complete answer that breaks the schema).

    A marker in a prompt takes precedence: `((fault:500))` fails every try, `((fault:500x2))` the first two.
    Of several markers the first that is not used up counts: `((fault:503x2))((fault:cutx3))` gives 503, 503,
    cut, and then the answer.

    Attributes:
        shares: Pairs of fault and the share of calls that it hits, drawn by request id and number of the try.
        seed: Another seed is another draw.

    Raises `ValueError` for an unknown fault or a share outside 0 to 1.

    >>> Faults().pick("request 1", "Hello ((fault:503x2))", attempt=2)
    '503'
    >>> Faults().pick("request 1", "Hello ((fault:503x2))", attempt=3) is None
    True
    """

    shares: tuple[tuple[str, float], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name, share in self.shares:
            if name not in FAULTS or not 0 <= share <= 1:
                raise ValueError(
                    f"fault {name}={share}; expected one of {sorted(FAULTS)} and a share of 0 to 1"
                )

    def pick(self, request_id: str, text: str, attempt: int) -> str | None:
        """The fault of the `attempt`-th try (from 1) of a request with this prompt text, or None."""
        if "((fault:" in text:
            for match in MARKER.finditer(text):
                if match[1] in FAULTS and (match[2] is None or attempt <= int(match[2])):
                    return match[1]
        if self.shares:
            left = unit(self.seed, "fault", request_id, attempt)
            for name, share in self.shares:
                left -= share
                if left < 0:
                    return name
        return None
