"""How summaries are made: windows, late events, budgets. One frozen value, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forebay.apps.summaries.values import LINE_TOKENS, WindowKind
from forebay.errors import SettingError

Late = Literal["next", "side", "correct"]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LEAST_CHUNK_TOKENS = 200
STRATA = 4
"""Equal parts of a tumbling window's time, each with its share of the budget."""
OVERHEAD_TOKENS = 330
"""What a call's instructions and answer form cost: an upper bound, held by a test."""


@dataclass(frozen=True, slots=True)
class Windows:
    """What a summary covers, in event time. Make one with the four class methods.

    `step_ms`: from one window to the next, a whole part of `size_ms`; the same as it unless they slide.
    `gap_ms`: the silence that ends a session, `max_ms` the longest one. `every_ms`: the longest time from an
    event to the running summary that knows it.
    """

    kind: WindowKind
    size_ms: int = 0
    step_ms: int = 0
    gap_ms: int = 0
    max_ms: int = 0
    every_ms: int = 0

    @classmethod
    def tumbling(cls, size_ms: int) -> Windows:
        """One after another, aligned to the epoch."""
        return cls("tumbling", size_ms=_positive("size_ms", size_ms), step_ms=size_ms)

    @classmethod
    def sliding(cls, size_ms: int, step_ms: int) -> Windows:
        """Windows of `size_ms` that end at every multiple of `step_ms`."""
        _positive("step_ms", step_ms)
        if _positive("size_ms", size_ms) % step_ms or size_ms == step_ms or size_ms > 32 * step_ms:
            raise SettingError(
                f"size_ms must be 2 to 32 times step_ms ({step_ms}), a whole number of times; found {size_ms}"
            )
        return cls("sliding", size_ms=size_ms, step_ms=step_ms)

    @classmethod
    def session(cls, gap_ms: int, max_ms: int = DAY_MS) -> Windows:
        """Events with less than `gap_ms` between them, `max_ms` of them at most."""
        if _positive("max_ms", max_ms) < _positive("gap_ms", gap_ms):
            raise SettingError(f"max_ms must be at least gap_ms ({gap_ms}), found {max_ms}")
        return cls("session", gap_ms=gap_ms, max_ms=max_ms)

    @classmethod
    def rolling(cls, every_ms: int) -> Windows:
        """No end: a running summary after each chunk."""
        return cls("rolling", every_ms=_positive("every_ms", every_ms))


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise SettingError(f"{name} must be at least 1, found {value}")
    return value


@dataclass(frozen=True, slots=True)
class SummaryPlan:
    """Windows, what becomes of late events, and budgets in estimated tokens (four bytes each).

    `late`: `next` folds an event whose window has closed into the window that is open, `side` gives it out,
    `correct` keeps a closed window for `allowed_ms`, and `correct_ms` after a late event gives its summary
    once more with that event in it; later ones go out as with `side`.
    `work_tokens`: all calls for one key and window; past it events are sampled. `summary_tokens`: the longest
    summary. `lead_ms`: so long before a window's end its events so far are summarised, so that less is left
    at its close. `ahead_ms`: an event further ahead of the wall clock is refused. `panes`: most windows
    that are open under one key, and most that are kept for corrections.
    """

    windows: Windows
    late: Late = "next"
    allowed_ms: int = HOUR_MS
    correct_ms: int = 60_000
    work_tokens: int = 100_000
    summary_tokens: int = 400
    chunk_tokens: int = 2400
    partial_tokens: int = 200
    fan_in: int = 4
    lead_ms: int = 60_000
    ahead_ms: int = DAY_MS
    panes: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.windows.kind in ("sliding", "rolling") and self.late == "correct":
            raise SettingError(
                f"late: {self.windows.kind} windows take 'next' or 'side'; a corrected summary needs windows "
                f"that do not overlap and that end"
            )
        if self.late not in ("next", "side", "correct"):
            raise SettingError(f"late must be next, side or correct; found {self.late!r}")
        length_ms = self.windows.size_ms or self.windows.gap_ms
        if self.late == "correct" and self.allowed_ms > self.panes * length_ms:
            raise SettingError(
                f"allowed_ms must be at most {self.panes} windows' (or silences') length, "
                f"{self.panes * length_ms}, for each is kept so long; found {self.allowed_ms}"
            )
        bounds = {"chunk_tokens": LEAST_CHUNK_TOKENS, "partial_tokens": 50, "fan_in": 2, "panes": 2}
        for name, least in bounds.items():
            if getattr(self, name) < least:
                raise SettingError(f"{name} must be at least {least}, found {getattr(self, name)}")
        if self.summary_tokens < self.partial_tokens:
            raise SettingError(
                f"summary_tokens must be at least partial_tokens ({self.partial_tokens}), "
                f"found {self.summary_tokens}"
            )
        # A text may have a quarter of a chunk, and each part of a window must have room for one.
        least_tokens = max(self.chunk_tokens, self.chunk_tokens // 4 * self.strata * self._panes)
        if self.event_tokens < least_tokens:
            raise SettingError(
                f"work_tokens must leave room for {least_tokens} tokens of events (chunk_tokens, and a "
                f"quarter of that for each part of a window): at least {self._work_of(least_tokens) + 1}, "
                f"found {self.work_tokens}"
            )
        for name in ("allowed_ms", "correct_ms", "lead_ms", "ahead_ms"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name} must not be negative, found {getattr(self, name)}")

    @property
    def text_tokens(self) -> int:
        """Longest text of one event: with its line a quarter of a chunk."""
        return self.chunk_tokens // 4 - LINE_TOKENS

    @property
    def event_tokens(self) -> int:
        """Tokens of events that may be summarised within `work_tokens`, instructions and merges counted."""
        fixed = self._work_of(0)
        return int((self.work_tokens - fixed) / (1 + self._per_chunk / self.full_tokens))

    @property
    def full_tokens(self) -> int:
        """A chunk to which one more event may not be added has at least so much."""
        return self.chunk_tokens * 3 // 4

    @property
    def strata(self) -> int:
        """Equal parts of a pane's time, each with its share of the budget. Panes that windows share are
        parts themselves."""
        return STRATA if self.windows.kind == "tumbling" else 1

    @property
    def partials_tokens(self) -> int:
        """Tokens of the partial summaries that the last call of a window holds, at most."""
        return max(3 * (self.fan_in - 1), self._panes) * self.partial_tokens

    @property
    def _panes(self) -> int:
        return self.windows.size_ms // self.windows.step_ms if self.windows.size_ms else 1

    @property
    def _per_chunk(self) -> float:
        if self.windows.kind == "rolling":
            return OVERHEAD_TOKENS + 2 * self.summary_tokens
        merge = OVERHEAD_TOKENS + (self.fan_in + 1) * self.partial_tokens
        return OVERHEAD_TOKENS + self.partial_tokens + merge / (self.fan_in - 1)

    def _work_of(self, events: int) -> int:
        """Tokens that it takes at most to summarise `events` tokens of events."""
        panes, partial = self._panes, self.partial_tokens
        # Beside full chunks: of each pane the last, that before its end, and those that end its strata.
        chunks = events / self.full_tokens + panes * (self.strata + 1) + 1
        close = OVERHEAD_TOKENS + self.partials_tokens + self.summary_tokens
        if panes > 1:
            # Each becomes one partial summary, in a merge of two or more.
            merge = (OVERHEAD_TOKENS + (self.fan_in + 1) * partial) / (self.fan_in - 1)
            close += int(panes * max(0, OVERHEAD_TOKENS + 3 * partial - 2 * merge))
        return int(events + chunks * self._per_chunk + close)
