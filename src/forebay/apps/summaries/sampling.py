"""Which events of a key are summarised where there are more than the budget allows. Deterministic by seed.

A window's time has equal strata, each with an equal share of the budget and with what those before it left.
Within a stratum every event is let in while its share lasts; then its last chunk becomes a uniform sample, by
the smallest hashes, of all that has come since that chunk began: the end of a busy hour is heard, too.
A pane of sliding windows is one stratum; so are sessions and running summaries, whose length is not known
beforehand.
"""

from __future__ import annotations

from hashlib import blake2b

from forebay.apps.summaries.parts import Item, events_of, weight
from forebay.apps.summaries.plan import SummaryPlan
from forebay.apps.summaries.state import Pane


def allowance(plan: SummaryPlan, pane: Pane) -> int:
    """Tokens of events that `pane` may have let in by the end of its present stratum."""
    windows = plan.windows
    share = plan.event_tokens
    if windows.size_ms:
        share = share * windows.step_ms // windows.size_ms
        return share * (pane.stratum + 1) // plan.strata
    return share


def stratum_of(plan: SummaryPlan, pane: Pane, time_ms: int) -> int:
    """The stratum of the pane that `time_ms` lies in; never one before the present one."""
    if plan.strata == 1:
        return 0
    now = (time_ms - pane.start_ms) * plan.strata // plan.windows.step_ms
    return min(max(now, pane.stratum), plan.strata - 1)


def must_cut(plan: SummaryPlan, pane: Pane, item: Item) -> bool:
    """Whether the open events are a full chunk to which `item` does not belong. What is left of the stratum's
    share must be worth another chunk; else the open events become a sample."""
    full = weight(pane.open) + item.tokens > plan.chunk_tokens
    left = allowance(plan, pane) - pane.spent
    return not pane.pool and full and left >= plan.chunk_tokens // 2


def admit(plan: SummaryPlan, key: str, pane: Pane, item: Item) -> None:
    """Put `item` among the pane's open events, or leave out it or others in its place, and count those."""
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
            # Nothing behind it either: a short text must not have a better chance than a long one.
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
