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
    """`shares` are pairs of fault and the share of calls it takes, drawn by request id and number of the try.

    A marker in the prompt, `((fault:500))`, is stronger and hits every try; `((fault:500x2))` only the
    first two tries of a request id. With several markers the first whose tries are not used up counts:
    `((fault:503x2))((fault:cutx3))` is two tries of 503 and then one cut answer.
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
