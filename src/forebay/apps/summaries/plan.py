"""How summaries are made: windows, late events, budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forebay.apps.summaries.values import LINE_TOKENS, WindowKind
from forebay.errors import SettingError

Late = Literal["next", "side", "correct"]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MIN_CHUNK_TOKENS = 200
STRATA = 4
OVERHEAD_TOKENS = 330
"""Upper bound of a call's instructions and answer schema; a test checks it."""


@dataclass(frozen=True, slots=True)
class Windows:
    """What a summary covers, in event time. Create one with the four class methods.

    `step_ms` is the time from one window to the next; it divides `size_ms`. `gap_ms` is the silence that ends
    a session of at most `max_ms`. `every_ms` is the maximum delay of an event in a running summary.
    """

    kind: WindowKind
    size_ms: int = 0
    step_ms: int = 0
    gap_ms: int = 0
    max_ms: int = 0
    every_ms: int = 0

    @classmethod
    def tumbling(cls, size_ms: int) -> Windows:
        return cls("tumbling", size_ms=_positive("size_ms", size_ms), step_ms=size_ms)

    @classmethod
    def sliding(cls, size_ms: int, step_ms: int) -> Windows:
        _positive("step_ms", step_ms)
        if _positive("size_ms", size_ms) % step_ms or size_ms == step_ms or size_ms > 32 * step_ms:
            raise SettingError(
                f"size_ms must be a multiple of step_ms ({step_ms}), 2 to 32 times as long; found {size_ms}"
            )
        return cls("sliding", size_ms=size_ms, step_ms=step_ms)

    @classmethod
    def session(cls, gap_ms: int, max_ms: int = DAY_MS) -> Windows:
        if _positive("max_ms", max_ms) < _positive("gap_ms", gap_ms):
            raise SettingError(f"max_ms must be at least gap_ms ({gap_ms}), found {max_ms}")
        return cls("session", gap_ms=gap_ms, max_ms=max_ms)

    @classmethod
    def rolling(cls, every_ms: int) -> Windows:
        return cls("rolling", every_ms=_positive("every_ms", every_ms))


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise SettingError(f"{name} must be at least 1, found {value}")
    return value


@dataclass(frozen=True, slots=True)
class SummaryPlan:
    """Windows, late events, and budgets in estimated tokens (four bytes each).

    `late`: an event after its window closed goes to the open window (`next`) or the dead letters (`side`), or
    its window is summarised again `correct_ms` later (`correct`; possible for `allowed_ms`). `work_tokens`:
    budget per key and window; events beyond it are sampled. `lead_ms`: summarise this long before a window's
    end, to leave less for its close. `ahead_ms`: refuse events further ahead of the wall clock. `panes`:
    maximum number of open windows per key, and of those kept for corrections.
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
                f"late: {self.windows.kind} windows take 'next' or 'side'; 'correct' needs windows that end "
                f"and do not overlap"
            )
        if self.late not in ("next", "side", "correct"):
            raise SettingError(f"late must be next, side or correct; found {self.late!r}")
        length_ms = self.windows.size_ms or self.windows.gap_ms
        if self.late == "correct" and self.allowed_ms > self.panes * length_ms:
            raise SettingError(
                f"allowed_ms must be at most the length of {self.panes} windows or gaps, "
                f"{self.panes * length_ms}, because each is kept that long; found {self.allowed_ms}"
            )
        bounds = {"chunk_tokens": MIN_CHUNK_TOKENS, "partial_tokens": 50, "fan_in": 2, "panes": 2}
        for name, least in bounds.items():
            if getattr(self, name) < least:
                raise SettingError(f"{name} must be at least {least}, found {getattr(self, name)}")
        if self.summary_tokens < self.partial_tokens:
            raise SettingError(
                f"summary_tokens must be at least partial_tokens ({self.partial_tokens}), "
                f"found {self.summary_tokens}"
            )
        # A text may use a quarter of a chunk, and each part of a window must have room for one.
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
        return self.chunk_tokens // 4 - LINE_TOKENS

    @property
    def event_tokens(self) -> int:
        fixed = self._work_of(0)
        return int((self.work_tokens - fixed) / (1 + self._per_chunk / self.full_tokens))

    @property
    def full_tokens(self) -> int:
        return self.chunk_tokens * 3 // 4

    @property
    def strata(self) -> int:
        return STRATA if self.windows.kind == "tumbling" else 1

    @property
    def partials_tokens(self) -> int:
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
        panes, partial = self._panes, self.partial_tokens
        # Besides full chunks, each pane has its last, the one before its end, and those that end its strata.
        chunks = events / self.full_tokens + panes * (self.strata + 1) + 1
        close = OVERHEAD_TOKENS + self.partials_tokens + self.summary_tokens
        if panes > 1:
            # Each becomes one partial summary, in a merge of two or more.
            merge = (OVERHEAD_TOKENS + (self.fan_in + 1) * partial) / (self.fan_in - 1)
            close += int(panes * max(0, OVERHEAD_TOKENS + 3 * partial - 2 * merge))
        return int(events + chunks * self._per_chunk + close)
