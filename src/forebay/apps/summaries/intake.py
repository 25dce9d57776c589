"""Assigns events to panes, samples them if they exceed the budget, and cuts chunks.

Sampling is deterministic by seed. A window has strata with equal shares of the budget, plus unused shares of
earlier ones. A stratum admits every event while its share lasts. Then its last chunk becomes a uniform sample
(smallest hashes) of everything since the chunk began. Panes of sliding windows, sessions and running
summaries are one stratum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

from forebay.apps.summaries.plan import SummaryPlan
from forebay.apps.summaries.state import FOREVER_MS, KeyState, Pane, bounds, ends_of, touched
from forebay.apps.summaries.values import Item, ItemChunk, Refused, clean, events_of, item_of, weight


def allowance(plan: SummaryPlan, pane: Pane) -> int:
    windows = plan.windows
    share = plan.event_tokens
    if windows.size_ms:
        share = share * windows.step_ms // windows.size_ms
        return share * (pane.stratum + 1) // plan.strata
    return share


def stratum_of(plan: SummaryPlan, pane: Pane, time_ms: int) -> int:
    if plan.strata == 1:
        return 0
    now = (time_ms - pane.start_ms) * plan.strata // plan.windows.step_ms
    return min(max(now, pane.stratum), plan.strata - 1)


def must_cut(plan: SummaryPlan, pane: Pane, item: Item) -> bool:
    full = weight(pane.open) + item.tokens > plan.chunk_tokens
    left = allowance(plan, pane) - pane.spent
    return not pane.pool and full and left >= plan.chunk_tokens // 2


def admit(plan: SummaryPlan, key: str, pane: Pane, item: Item) -> None:
    held = weight(pane.open)
    room = min(plan.chunk_tokens, allowance(plan, pane) - (pane.spent - held))
    if not pane.pool and held + item.tokens <= room:
        pane.open.append(item)
        pane.spent += item.tokens
        return
    pane.pool = True
    if pane.bar is not None and _hash(plan.seed, key, item.id) >= pane.bar:
        pane.left_out += item.copies
        return
    pool = sorted((_hash(plan.seed, key, each.id), at, each) for at, each in enumerate((*pane.open, item)))
    kept: list[tuple[int, Item]] = []
    for hash, at, each in pool:
        if each.tokens > room:
            # Do not try the next ones: a short text must not have a better chance than a long one.
            pane.bar = hash
            break
        room -= each.tokens
        kept.append((at, each))
    out = pool[len(kept) :]
    pane.left_out += events_of([each for _, _, each in out])
    kept.sort(key=lambda each: each[0])
    pane.open = [each for _, each in kept]
    pane.spent += weight(pane.open) - held


def _hash(seed: int, key: str, id: str) -> int:
    digest = blake2b(f"{seed}\0{key}\0{id}".encode("utf-8", "replace"), digest_size=7).digest()
    return int.from_bytes(digest, "big")


@dataclass(frozen=True, slots=True)
class Arrival:
    id: str
    time_ms: int | None
    text: str


def passed(state: KeyState, time_ms: int) -> bool:
    # A window [start, end) is complete if nothing before its end can arrive.
    return state.watermark_ms is not None and state.watermark_ms >= time_ms - 1


class Intake:
    def __init__(self, plan: SummaryPlan) -> None:
        self.plan = plan

    def take(self, key: str, state: KeyState, event: Arrival, wall_ms: int | None) -> Refused | None:
        plan, time_ms = self.plan, event.time_ms
        text = clean(event.text, plan.text_tokens)

        def refused(cause: str) -> Refused:
            return Refused(key, event.id, time_ms, text, cause)

        if time_ms is None:
            return refused("no_time")
        if wall_ms is not None and time_ms > wall_ms + plan.ahead_ms:
            return refused("future")
        self.close_passed(state)
        item = item_of(event.id, time_ms, text)
        found = touched(plan.windows, state.panes, time_ms)
        if found:
            self._put(key, state, self._joined(state, found), item)
            return None
        if passed(state, bounds(plan.windows, time_ms)[1]):
            return self._take_late(key, state, item)
        return self._put_anew(key, state, item, time_ms)

    def _take_late(self, key: str, state: KeyState, item: Item) -> Refused | None:
        plan, now_ms = self.plan, state.watermark_ms
        assert now_ms is not None
        item = replace(item, late=True)
        if plan.late == "correct":
            # Includes a session that it would have extended: that one has ended and takes no other events. A
            # session is separated by a gap of `gap_ms`; other windows include their first moment.
            before_ms = plan.windows.gap_ms or 1
            for pane in state.panes:
                if pane.closed and pane.start_ms - before_ms < item.time_ms < pane.end_ms:
                    if pane.due_ms is None:
                        pane.due_ms = min(now_ms + plan.correct_ms, pane.end_ms + plan.allowed_ms)
                    self._put(key, state, pane, item)
                    return None
            if not passed(state, bounds(plan.windows, item.time_ms)[1] + plan.allowed_ms):
                return self._put_anew(key, state, item, item.time_ms)
        elif plan.late == "next" and now_ms < FOREVER_MS:
            found = touched(plan.windows, state.panes, now_ms + 1)
            if found:
                self._put(key, state, found[0], item)
                return None
            return self._put_anew(key, state, item, now_ms + 1)
        return Refused(key, item.id, item.time_ms, item.text, "late")

    def _put_anew(self, key: str, state: KeyState, item: Item, time_ms: int) -> Refused | None:
        # Panes kept for corrections are bounded by the plan.
        if sum(not (pane.closed and pane.revision) for pane in state.panes) >= self.plan.panes:
            return Refused(key, item.id, item.time_ms, item.text, "too_many_windows")
        start_ms, end_ms = bounds(self.plan.windows, time_ms)
        pane = Pane(state.take_id(), start_ms, end_ms)
        state.panes.append(pane)
        state.panes.sort(key=lambda each: each.start_ms)
        correct = self.plan.late == "correct"
        ends = [end for end in ends_of(self.plan.windows, start_ms) if correct or not passed(state, end)]
        state.ends = sorted({*state.ends, *ends})
        self._put(key, state, pane, item)
        return None

    def _joined(self, state: KeyState, found: list[Pane]) -> Pane:
        pane = found[0]
        if len(found) == 1:
            return pane
        other = found[1]
        held = weight(pane.open)
        if pane.pool or other.pool or held + weight(other.open) > self.plan.chunk_tokens:
            pane.spent += max(0, self.plan.full_tokens - held)
            self.cut(state, pane)
        pane.end_ms = max(pane.end_ms, other.end_ms)
        for name in ("waiting", "nodes", "open"):
            getattr(pane, name).extend(getattr(other, name))
        for name in ("spent", "seen", "late", "left_out", "failed", "unsourced", "broken", "clipped", "cut"):
            setattr(pane, name, getattr(pane, name) + getattr(other, name))
        for name in ("prompt_tokens", "completion_tokens", "calls"):
            setattr(pane, name, getattr(pane, name) + getattr(other, name))
        for cause, calls in other.failures.items():
            pane.failures[cause] = pane.failures.get(cause, 0) + calls
        pane.failure = other.failure or pane.failure
        pane.pool, pane.bar, pane.led = other.pool, other.bar, other.led
        state.panes.remove(other)
        if state.work is not None and state.work.pane == other.id:
            state.work = replace(state.work, pane=pane.id)
        return pane

    def _put(self, key: str, state: KeyState, pane: Pane, item: Item) -> None:
        plan = self.plan
        pane.seen += 1
        pane.late += item.late
        if plan.windows.kind == "session" and not pane.closed and not item.late:
            pane.start_ms = min(pane.start_ms, item.time_ms)
            end_ms = max(pane.end_ms, item.time_ms + plan.windows.gap_ms)
            if end_ms > pane.end_ms:
                pane.end_ms, pane.led = end_ms, False
        if plan.windows.kind == "rolling":
            self._due(state, pane, item.time_ms)
        elif not pane.led and item.time_ms >= self.lead_ms(pane):
            self._lead(state, pane)
        stratum = stratum_of(plan, pane, item.time_ms)
        if stratum > pane.stratum:
            if pane.pool:
                self.cut(state, pane)
            pane.stratum = stratum
        for at, known in enumerate(pane.open):
            if known.text == item.text and known.late == item.late:
                # Duplicates cost nothing.
                pane.open[at] = replace(known, copies=known.copies + 1)
                return
        if must_cut(plan, pane, item):
            self.cut(state, pane)
        admit(plan, key, pane, item)

    def _due(self, state: KeyState, pane: Pane, time_ms: int) -> None:
        # A late event gets the full time too, otherwise each would cost a call.
        # An event from the future does not delay the others.
        if pane.open and pane.due_ms is not None and time_ms >= pane.due_ms:
            self._cut_early(state, pane)
        now_ms = time_ms if state.watermark_ms is None else max(time_ms, state.watermark_ms)
        due_ms = now_ms + self.plan.windows.every_ms
        held_ms = pane.due_ms if pane.open else None
        pane.due_ms = due_ms if held_ms is None else min(held_ms, due_ms)

    def _lead(self, state: KeyState, pane: Pane) -> None:
        # A sample continues to the end: after a cut there would be no budget for later events.
        if not pane.pool:
            if self.plan.windows.kind == "session":
                # A session can approach its end repeatedly.
                self._cut_early(state, pane)
            else:
                self.cut(state, pane)
        pane.led = True

    def _cut_early(self, state: KeyState, pane: Pane) -> None:
        """Charged as a full chunk, and only half of the budget may be spent this way."""
        fee = max(0, self.plan.full_tokens - weight(pane.open))
        if not pane.pool and pane.spent + fee <= allowance(self.plan, pane) // 2:
            pane.spent += fee
            self.cut(state, pane)

    @staticmethod
    def cut(state: KeyState, pane: Pane) -> None:
        if pane.open:
            items = sorted(pane.open, key=lambda item: item.time_ms)
            pane.waiting.append(ItemChunk(state.take_id(), tuple(items)))
            pane.open = []
        pane.pool, pane.bar = False, None

    def close_passed(self, state: KeyState) -> None:
        rolling = self.plan.windows.kind == "rolling"
        for pane in state.panes:
            if rolling:
                self._renew(state, pane)
            elif not pane.closed:
                if not pane.led and passed(state, self.lead_ms(pane)):
                    self._lead(state, pane)
                pane.closed = passed(state, pane.end_ms)

    def _renew(self, state: KeyState, pane: Pane) -> None:
        """A running summary has its budget per `every_ms`, minus waiting chunks."""
        every_ms, now_ms = self.plan.windows.every_ms, state.watermark_ms
        if now_ms is None:
            return
        due = pane.due_ms is not None and passed(state, pane.due_ms)
        over = passed(state, pane.start_ms + every_ms)
        if due or (over and pane.pool):
            self.cut(state, pane)
        if over:
            pane.spent = weight(pane.open) + sum(weight(chunk.items) for chunk in pane.waiting)
        if over or pane.start_ms > now_ms:
            pane.start_ms = now_ms

    def lead_ms(self, pane: Pane) -> int:
        lead_ms = min(self.plan.lead_ms, (pane.end_ms - pane.start_ms) // 4)
        if self.plan.windows.kind == "session":
            lead_ms = min(lead_ms, self.plan.windows.gap_ms // 2)
        return pane.end_ms - lead_ms
