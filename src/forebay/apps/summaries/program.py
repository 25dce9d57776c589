"""The pure state machine of one key's summaries: takes events, answers and watermarks, returns calls.

One call is in flight per key. Full chunks are summarised, and `fan_in` partial summaries of a level are
merged into one of the next, like a binary counter. So a window's close only has an unfilled chunk left. Calls
depend on the order of events alone, not on the duration of calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from forebay.apps.summaries.intake import Arrival, Intake, passed
from forebay.apps.summaries.plan import SummaryPlan
from forebay.apps.summaries.prompt import Read, SummaryCall, read_answer, without_answer
from forebay.apps.summaries.state import KeyState, Pane, Work, ends_of, panes_of
from forebay.apps.summaries.values import (
    ItemChunk,
    Node,
    Refused,
    Statement,
    Summary,
    events_of,
    is_clipped,
    within,
)
from forebay.records import JSON, Usage
from forebay.stateful.program import Failure

Output = Summary | Refused
COUNTED = ("left_out", "failed", "late", "unsourced", "broken", "clipped")
UNREAD = "left_out: none of the events was read by the model"
TOO_LONG = "cut: no statement fits into the token budget"


class SummaryProgram:
    """Stateless: everything about a key is in the state passed in.

    Each method changes the state and returns what to emit. Afterwards, `ask` returns the call that must be in
    flight, and `wake_ms` the watermark at which to call `on_watermark`.
    """

    def __init__(self, plan: SummaryPlan) -> None:
        self.plan = plan
        self._intake = Intake(plan)

    def on_event(
        self,
        key: str,
        state: KeyState,
        event: Arrival,
        watermark_ms: int | None,
        wall_ms: int | None = None,
    ) -> list[Output]:
        """Events too far ahead of `wall_ms` are refused, unless it is None."""
        _pass(state, watermark_ms)
        refused = self._intake.take(key, state, event, wall_ms)
        return [*([] if refused is None else [refused]), *self._advance(key, state)]

    def on_watermark(self, key: str, state: KeyState, watermark_ms: int) -> list[Output]:
        _pass(state, watermark_ms)
        return list(self._advance(key, state))

    def on_answer(self, key: str, state: KeyState, answer: JSON, usage: Usage) -> list[Output]:
        ask = self.ask(key, state)
        assert ask is not None
        read = read_answer(ask, answer)
        outputs = self._done(key, state, ask, read, usage, failure=read.failure)
        return [*outputs, *self._advance(key, state)]

    def on_failure(self, key: str, state: KeyState, failure: Failure) -> list[Output]:
        """The events of the call in flight count as failed; its statements are kept."""
        ask = self.ask(key, state)
        assert ask is not None
        outputs = self._done(key, state, ask, without_answer(ask), Usage(), failure=failure)
        return [*outputs, *self._advance(key, state)]

    def ask(self, key: str, state: KeyState) -> SummaryCall | None:
        """The call in flight, rebuilt from the state; always equal until it is answered."""
        work, plan = state.work, self.plan
        if work is None:
            return None
        id = "-".join(map(str, (work.kind, work.pane, *work.ids, work.end_ms)))
        if work.kind == "chunk":
            items = _chunk(state.pane(work.pane), work.ids[0]).items
            return SummaryCall(id, work.kind, key, (), items, plan.partial_tokens)
        if work.kind == "merge":
            nodes = [node for node in state.pane(work.pane).nodes if node.id in work.ids]
            return SummaryCall(id, work.kind, key, _statements(nodes), (), plan.partial_tokens)
        panes = [state.pane(work.pane)] if work.pane >= 0 else []
        items = tuple(item for id in work.ids for item in _chunk(panes[0], id).items)
        nodes = [node for pane in self._parts(state, work) for node in pane.nodes]
        revision = panes[0].revision if panes else 0
        return SummaryCall(f"{id}-{revision}", work.kind, key, _statements(nodes), items, plan.summary_tokens)

    def wake_ms(self, state: KeyState) -> int | None:
        found = list(state.ends)
        for pane in state.panes:
            found += self._moments(pane)
        return min((due - 1 for due in found if not passed(state, due)), default=None)

    def over_ms(self, state: KeyState) -> int | None:
        if self.plan.windows.kind == "rolling":
            ends = [pane.due_ms for pane in state.panes if pane.open and pane.due_ms is not None]
        else:
            ends = [pane.end_ms for pane in state.panes if not pane.closed]
        return max(ends, default=None)

    def _moments(self, pane: Pane) -> Iterator[int]:
        plan = self.plan
        if plan.windows.kind == "rolling":
            if pane.open and pane.due_ms is not None:
                yield pane.due_ms
        elif pane.revision and plan.late == "correct":
            yield pane.end_ms + plan.allowed_ms
            if pane.due_ms is not None:
                yield pane.due_ms
        elif not pane.closed:
            yield pane.end_ms
            if not pane.led:
                yield self._intake.lead_ms(pane)

    def _advance(self, key: str, state: KeyState) -> Iterator[Output]:
        self._intake.close_passed(state)
        while state.work is None:
            due = self._due(state)
            if due is None:
                break
            if due.kind == "close":
                ready = self._ready(state, due)
                if ready is not None:
                    yield from self._give(key, state, due, *ready)
                    continue
                due = self._with_tail(state, due)
            state.work = due
        self._forget(state)

    def _due(self, state: KeyState) -> Work | None:
        windows = self.plan.windows
        if windows.kind == "rolling":
            for pane in state.panes:
                if pane.waiting:
                    return Work("close", pane.id, (pane.waiting[0].id,))
            return None
        close = self._due_close(state)
        if close is None:
            return next(filter(None, (self._piece(state, pane, None) for pane in state.panes)), None)
        parts = (pane for pane in state.panes if pane.end_ms <= close.end_ms)
        return next(filter(None, (self._piece(state, pane, close.end_ms) for pane in parts)), close)

    def _due_close(self, state: KeyState) -> Work | None:
        found = [
            Work("close", pane.id, (), pane.end_ms)
            for pane in state.panes
            if pane.revision and pane.due_ms is not None and passed(state, pane.due_ms)
        ]
        if self.plan.windows.kind == "session":
            found += [
                Work("close", pane.id, (), pane.end_ms)
                for pane in state.panes
                if pane.closed and not pane.revision
            ]
        for end_ms in state.ends[:1]:
            if passed(state, end_ms):
                newest = [pane.id for pane in state.panes if pane.end_ms == end_ms]
                found.append(Work("close", newest[0] if newest else -1, (), end_ms))
        return min(found, key=lambda work: (work.end_ms, work.pane), default=None)

    def _piece(self, state: KeyState, pane: Pane, end_ms: int | None) -> Work | None:
        plan, nodes = self.plan, pane.nodes
        if pane.waiting:
            return Work("chunk", pane.id, (pane.waiting[0].id,))
        for i in range(len(nodes) - plan.fan_in + 1):
            group = nodes[i : i + plan.fan_in]
            if len({node.level for node in group}) == 1:
                return Work("merge", pane.id, tuple(node.id for node in group))
        if len(nodes) > 4 * plan.fan_in:
            return Work("merge", pane.id, tuple(node.id for node in nodes[: plan.fan_in]))
        # A pane shared by windows is reduced to one partial summary once it has closed.
        shared = plan.windows.kind == "sliding" and pane.closed and pane.end_ms != end_ms
        if shared and pane.end_ms not in state.ends and len(nodes) > 1:
            return Work("merge", pane.id, tuple(node.id for node in nodes))
        return None

    def _parts(self, state: KeyState, work: Work) -> list[Pane]:
        if not self.plan.windows.size_ms:
            return [state.pane(work.pane)]
        return panes_of(self.plan.windows, state.panes, work.end_ms)

    def _ready(self, state: KeyState, work: Work) -> tuple[tuple[Statement, ...], int] | None:
        parts = self._parts(state, work)
        statements = _statements([node for pane in parts for node in pane.nodes])
        if work.ids or (work.pane >= 0 and state.pane(work.pane).open):
            return None
        if sum(each.tokens for each in statements) > self.plan.summary_tokens:
            return None
        return within(statements, self.plan.summary_tokens)

    def _with_tail(self, state: KeyState, work: Work) -> Work:
        if work.ids or work.pane < 0:
            return work
        pane = state.pane(work.pane)
        self._intake.cut(state, pane)
        return replace(work, ids=tuple(chunk.id for chunk in pane.waiting))

    def _done(
        self,
        key: str,
        state: KeyState,
        ask: SummaryCall,
        read: Read,
        usage: Usage,
        *,
        failure: Failure | None = None,
    ) -> list[Output]:
        work = state.work
        assert work is not None
        state.work = None
        events = events_of(ask.items)
        pane = state.pane(work.pane) if work.pane >= 0 else self._parts(state, work)[-1]
        # A call for a window of several panes belongs to that window; work on a pane is shared.
        own = work.kind == "close" and self.plan.windows.kind == "sliding"
        if not own:
            pane.calls += 1
            pane.prompt_tokens += usage.prompt_tokens
            pane.completion_tokens += usage.completion_tokens
        pane.unsourced += read.unsourced
        pane.broken += read.broken
        if failure is None:
            pane.clipped += events_of([item for item in ask.items if is_clipped(item.text)])
        if work.kind != "close":
            pane.cut += read.cut
        pane.waiting = [chunk for chunk in pane.waiting if chunk.id not in work.ids]
        if failure is not None:
            pane.fail(failure.cause, failure.detail)
            pane.failed += events
            events = 0
        statements = (*read.earlier, *read.new)
        if work.kind == "chunk":
            pane.nodes.append(Node(state.take_id(), 0, statements, events))
        elif work.kind == "merge":
            self._merged(state, pane, work.ids, statements)
        else:
            if ask.items:
                # Statements about its last events, for the windows that share this pane.
                pane.nodes.append(Node(state.take_id(), 0, read.new, events))
            ordered, cut = within(statements, self.plan.summary_tokens)
            cost = usage if own else None
            return list(self._give(key, state, work, ordered, cut + read.cut, own=cost))
        return []

    @staticmethod
    def _merged(state: KeyState, pane: Pane, ids: tuple[int, ...], statements: tuple[Statement, ...]) -> None:
        at = next(i for i, node in enumerate(pane.nodes) if node.id == ids[0])
        group = pane.nodes[at : at + len(ids)]
        level = max(node.level for node in group) + 1
        events = sum(node.events for node in group)
        pane.nodes[at : at + len(ids)] = [Node(state.take_id(), level, statements, events)]

    def _give(
        self,
        key: str,
        state: KeyState,
        work: Work,
        statements: tuple[Statement, ...],
        cut: int,
        *,
        own: Usage | None = None,
    ) -> Iterator[Output]:
        """`own`: cost of the call for this summary, if its panes do not include it."""
        plan, parts = self.plan, self._parts(state, work)
        summarised = sum(node.events for pane in parts for node in pane.nodes)

        def total(name: str) -> int:
            return sum(getattr(pane, name) for pane in parts)

        failures: Counter[str] = Counter()
        for pane in parts:
            failures.update(pane.failures)
        failure = next((pane.failure for pane in reversed(parts) if pane.failure), "")
        rolling = plan.windows.kind == "rolling"
        newest = parts[-1]
        start_ms, end_ms = (newest.start_ms, newest.end_ms) if plan.windows.kind == "session" else (0, 0)
        if rolling:
            times = [source.time_ms for each in statements for source in each.sources]
            start_ms, end_ms = min(times, default=newest.start_ms), max(times, default=newest.start_ms)
        elif plan.windows.size_ms:
            start_ms, end_ms = work.end_ms - plan.windows.size_ms, work.end_ms
        revision = newest.revision if rolling or plan.late == "correct" else 0
        yield Summary(
            key=key,
            kind=plan.windows.kind,
            start_ms=start_ms,
            end_ms=end_ms,
            revision=revision,
            statements=statements,
            events=summarised + total("left_out") + total("failed"),
            summarised=summarised,
            cut=cut + total("cut"),
            calls=total("calls") + (own is not None),
            prompt_tokens=total("prompt_tokens") + (own.prompt_tokens if own else 0),
            completion_tokens=total("completion_tokens") + (own.completion_tokens if own else 0),
            failures=dict(failures),
            failure=failure or ("" if statements else TOO_LONG if summarised else UNREAD),
            **{name: total(name) for name in COUNTED},
        )
        newest.revision += 1
        if not plan.windows.size_ms or plan.windows.kind == "tumbling":
            newest.nodes = [Node(state.take_id(), 0, statements, summarised)]
            if not newest.open and not newest.waiting:
                newest.due_ms = None
        if work.end_ms in state.ends:
            state.ends.remove(work.end_ms)

    def _forget(self, state: KeyState) -> None:
        plan = self.plan
        if plan.windows.kind == "rolling":
            return
        out = state.work

        def needed(pane: Pane) -> bool:
            if not pane.closed or (out is not None and out.pane == pane.id):
                return True
            if plan.late == "correct":
                kept = not passed(state, pane.end_ms + plan.allowed_ms)
                return kept or not pane.revision or pane.due_ms is not None
            if plan.windows.size_ms:
                return any(end in state.ends for end in ends_of(plan.windows, pane.start_ms))
            return not pane.revision

        if not all(map(needed, state.panes)):
            state.panes = [pane for pane in state.panes if needed(pane)]


def _chunk(pane: Pane, id: int) -> ItemChunk:
    return next(chunk for chunk in pane.waiting if chunk.id == id)


def _statements(nodes: list[Node]) -> tuple[Statement, ...]:
    return tuple(statement for node in nodes for statement in node.statements)


def _pass(state: KeyState, watermark_ms: int | None) -> None:
    if watermark_ms is not None and (state.watermark_ms is None or watermark_ms > state.watermark_ms):
        state.watermark_ms = watermark_ms
