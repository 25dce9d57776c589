"""Whether a replica is asked for its answers in one piece, or as streams of tokens."""

from __future__ import annotations

SURE = 32
"""So many answers in a row have to be short."""
SHORT = 0.25
"""An answer is short that took less than this share of the time for which nothing may come of one."""


class AnswerForm:
    """One replica's.

    An answer in one piece costs less, at the replica and here: nobody handles its tokens one by one. But
    first tokens tell what a replica works on, which routing among several needs, and the next ones show that
    a long answer goes on. So a replica that is alone, and whose answers are short, is asked for whole ones.
    """

    def __init__(self) -> None:
        self._short = 0
        self._streams_only = False

    def whole(self, *, alone: bool) -> bool:
        """Whether the next answer is asked for in one piece; `alone`: there is no other replica."""
        return alone and self._short >= SURE and not self._streams_only

    def answered(self, took_s: float, timeout_s: float) -> None:
        """An answer took so long; `timeout_s`: for how long nothing may come of one."""
        self._short = self._short + 1 if took_s < SHORT * timeout_s else 0

    def failed(self) -> None:
        """One was given up, or came to nothing."""
        self._short = 0

    def refused(self) -> None:
        """What it refuses in one piece it answers as a stream."""
        self._streams_only = True
