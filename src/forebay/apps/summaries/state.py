"""The state of one key and its mapping of events and windows to panes; saved as msgpack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgpack

from forebay.apps.summaries.plan import Windows
from forebay.apps.summaries.values import Item, ItemChunk, Node, Source, Statement
from forebay.codec import DAMAGED, damaged

MAX_FAILURE_CHARS = 300
WorkKind = Literal["chunk", "merge", "close"]


@dataclass(slots=True)
class Pane:
    """A span of event time that is summarised as one: a window, or a part shared by windows.

    `open`: events without a chunk; `waiting`: chunks without a call; `nodes`: partial summaries. `led`:
    earlier events were cut because the end is near. `spent`: tokens of admitted events plus the charge for
    early chunks. `pool`: `open` is a sample of events with a hash below `bar`. Statements: `unsourced`
    without a source; `broken` with repetition or a truncated end; `cut` over the limit of a partial summary.
    `clipped`: truncated events. `revision`: summaries emitted. `due_ms`: when a correction, or a running
    summary's open events, are due.
    """

    id: int
    start_ms: int
    end_ms: int
    open: list[Item] = field(default_factory=list)
    waiting: list[ItemChunk] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    stratum: int = 0
    spent: int = 0
    pool: bool = False
    bar: int | None = None
    seen: int = 0
    late: int = 0
    left_out: int = 0
    failed: int = 0
    unsourced: int = 0
    broken: int = 0
    clipped: int = 0
    led: bool = False
    closed: bool = False
    revision: int = 0
    due_ms: int | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 0
    cut: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    failure: str = ""

    def fail(self, cause: str, detail: str) -> None:
        self.failures[cause] = self.failures.get(cause, 0) + 1
        self.failure = f"{cause}: {detail}"[:MAX_FAILURE_CHARS]


@dataclass(frozen=True, slots=True)
class Work:
    kind: WorkKind
    pane: int
    ids: tuple[int, ...] = ()
    end_ms: int = 0


@dataclass(slots=True)
class KeyState:
    """`ends`: ends of windows without a summary, in order; not of sessions. `chained`: calls in a row."""

    panes: list[Pane] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    work: Work | None = None
    next_id: int = 0
    watermark_ms: int | None = None
    chained: int = 0

    def take_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    @property
    def idle(self) -> bool:
        return not self.panes and not self.ends and self.work is None

    def pane(self, id: int) -> Pane:
        return next(pane for pane in self.panes if pane.id == id)

    def to_bytes(self) -> bytes:
        work = self.work
        packed: bytes = msgpack.packb(
            [
                self.next_id,
                self.watermark_ms,
                self.chained,
                self.ends,
                None if work is None else [work.kind, work.pane, work.ids, work.end_ms],
                [_pane_list(pane) for pane in self.panes],
            ]
        )
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyState:
        """Raises `ForebayError` for bytes that are not from `to_bytes`."""
        try:
            next_id, watermark_ms, chained, ends, work, panes = msgpack.unpackb(data, strict_map_key=False)
            return cls(
                panes=[_pane_of(values) for values in panes],
                ends=list(ends),
                work=None if work is None else Work(work[0], work[1], tuple(work[2]), work[3]),
                next_id=next_id,
                watermark_ms=watermark_ms,
                chained=chained,
            )
        except DAMAGED as error:
            raise damaged("summaries", error) from None


_PLAIN = tuple(name for name in Pane.__dataclass_fields__ if name not in ("open", "waiting", "nodes"))


def _pane_list(pane: Pane) -> list[Any]:
    return [
        [getattr(pane, name) for name in _PLAIN],
        [_item_list(item) for item in pane.open],
        [[chunk.id, [_item_list(item) for item in chunk.items]] for chunk in pane.waiting],
        [
            [node.id, node.level, node.events, [_statement_list(each) for each in node.statements]]
            for node in pane.nodes
        ],
    ]


def _pane_of(values: list[Any]) -> Pane:
    plain, open_, waiting, nodes = values
    return Pane(
        **dict(zip(_PLAIN, plain, strict=True)),
        open=[Item(*item) for item in open_],
        waiting=[ItemChunk(id, tuple(Item(*item) for item in items)) for id, items in waiting],
        nodes=[
            Node(id, level, tuple(_statement_of(each) for each in statements), events)
            for id, level, events, statements in nodes
        ],
    )


def _item_list(item: Item) -> list[Any]:
    return [item.id, item.time_ms, item.text, item.tokens, item.copies, item.late]


def _statement_list(statement: Statement) -> list[Any]:
    sources = [[source.id, source.time_ms, source.text] for source in statement.sources]
    return [statement.text, sources, statement.more, statement.unsupported]


def _statement_of(values: list[Any]) -> Statement:
    text, sources, more, missing = values
    return Statement(text, tuple(Source(*source) for source in sources), more, tuple(missing))


FOREVER_MS = 2**62


def bounds(windows: Windows, time_ms: int) -> tuple[int, int]:
    if windows.kind == "session":
        return time_ms, time_ms + windows.gap_ms
    if windows.kind == "rolling":
        return time_ms, FOREVER_MS
    start_ms = time_ms // windows.step_ms * windows.step_ms
    return start_ms, start_ms + windows.step_ms


def ends_of(windows: Windows, start_ms: int) -> range:
    if not windows.size_ms:
        return range(0)
    return range(start_ms + windows.step_ms, start_ms + windows.size_ms + 1, windows.step_ms)


def panes_of(windows: Windows, panes: Iterable[Pane], end_ms: int) -> list[Pane]:
    return [pane for pane in panes if end_ms - windows.size_ms <= pane.start_ms < end_ms]


def touched(windows: Windows, panes: Sequence[Pane], time_ms: int) -> list[Pane]:
    """The open panes for an event: at most one, or two sessions that it connects.

    A session takes no event `max_ms` or more from its other end.
    """
    if windows.kind == "rolling":
        return [pane for pane in panes if not pane.closed][:1]
    if windows.size_ms:
        start_ms, _ = bounds(windows, time_ms)
        return [pane for pane in panes if pane.start_ms == start_ms and not pane.closed]
    found = [
        pane
        for pane in panes
        if not pane.closed and pane.start_ms < time_ms + windows.gap_ms and time_ms < pane.end_ms
    ]
    longest = windows.max_ms
    found = [
        pane
        for pane in found
        if time_ms - pane.start_ms < longest and pane.end_ms - windows.gap_ms - time_ms < longest
    ]
    if len(found) > 1 and found[1].end_ms - windows.gap_ms - found[0].start_ms >= longest:
        return found[:1]
    return found[:2]
