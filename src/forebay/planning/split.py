"""Prefill and decode on separate replicas: how many of each, and whether it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.errors import SettingError
from forebay.planning.simulate.disaggregation import Split, Transfer, TwoPools
from forebay.planning.simulate.engine import EngineModel
from forebay.planning.simulate.figures import Slo
from forebay.planning.simulate.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """Seconds that a mean request takes on a replica that only prefills, and on one that only decodes."""

    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Two pools compared with mixed replicas.

    Attributes:
        prefill: Replicas that prefill, with as many replicas as the mixed fleet; 0 if that has one.
        decode: Replicas that decode.
        goodput: The share of requests within the SLO, with these two pools.
        replicas: The smallest number with which two pools reach the goal; None if twice as many do not.
        pays: Whether these are fewer than the mixed ones.
    """

    prefill: int
    decode: int
    goodput: float
    replicas: int | None
    pays: bool


def phase_work(lengths: Sequence[TraceRequest], engine: EngineModel, tpot_s: float) -> PhaseWork:
    """The seconds of a mean request in each phase, of at least one request.

    The batch of a decode replica is limited by `max_num_seqs`, by the KV cache, and by the step that still
    gives a token every `tpot_s`.
    """
    if not lengths:
        raise SettingError("workload: expected at least one request")
    prefill = sum(engine.alone_s(one.prompt_tokens) for one in lengths) / len(lengths)
    outputs = sum(one.output_tokens for one in lengths)
    context = (
        sum(one.output_tokens * (one.prompt_tokens + one.output_tokens / 2) for one in lengths) / outputs
    )
    time, batch = engine.step_time, decode_batch(engine, context, tpot_s)
    each = time.decode_s + context * time.context_s
    return PhaseWork(prefill, (time.step_s / batch + each) * outputs / len(lengths))


def decode_batch(engine: EngineModel, context: float, tpot_s: float) -> float:
    """How many requests of `context` tokens each, on average, fill a decode replica; at least 1."""
    time = engine.step_time
    each = time.decode_s + context * time.context_s
    batch = min(engine.max_num_seqs, engine.kv_tokens / max(context, 1.0))
    if each > 0:
        batch = min(batch, (tpot_s - time.step_s) / each)
    return max(batch, 1.0)


def split_of(replicas: int, work: PhaseWork) -> Split:
    """The split of at least two replicas with the highest throughput: its busier pool is the least busy."""
    if replicas < 2:
        raise SettingError(f"split: expected at least 2 replicas, found {replicas}")
    # The best split is one of the two whole numbers next to the point where both pools are equally busy.
    even = int(replicas * work.prefill_s / (work.prefill_s + work.decode_s))
    near = {min(max(one, 1), replicas - 1) for one in (even, even + 1)}
    best = min(sorted(near), key=lambda one: max(work.prefill_s / one, work.decode_s / (replicas - one)))
    return Split(best, replicas - best)


def plan_split(
    trace: Sequence[TraceRequest],
    engine: EngineModel,
    slo: Slo,
    transfer: Transfer,
    *,
    mixed: int,
    goal: float = 0.99,
) -> SplitPlan:
    """Two pools for a workload that `mixed` mixed replicas serve with `goal` of the requests within the SLO.

    Each candidate serves the whole trace in the simulator.
    """
    pools, work = TwoPools(trace, engine, slo, transfer), phase_work(trace, engine, slo.tpot_s)
    found: dict[int, float] = {}

    def goodput(replicas: int) -> float:
        if replicas not in found:
            found[replicas] = pools.goodput(split_of(replicas, work))
        return found[replicas]

    low, high = 1, max(2, mixed)
    same = split_of(high, work)
    if goodput(high) < goal:
        low, high = high, max(3, 2 * mixed)
    if goodput(high) < goal:
        least = None
    else:
        while high - low > 1:
            middle = (low + high) // 2
            if goodput(middle) >= goal:
                high = middle
            else:
                low = middle
        least = high
    return SplitPlan(
        prefill=same.prefill if mixed > 1 else 0,
        decode=same.decode if mixed > 1 else 0,
        goodput=goodput(mixed) if mixed > 1 else 0.0,
        replicas=least,
        pays=least is not None and least < mixed,
    )
