"""How many replicas a workload needs for its SLO, by simulation; and what limits them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forebay.errors import SettingError
from forebay.fleet.config import DEFAULT_POLICY
from forebay.planning.memory import Accelerator, MemoryPlan
from forebay.planning.model_config import ModelShape
from forebay.planning.simulate import Scenario, Slo
from forebay.planning.simulate.disaggregation import Split, Transfer, TwoPools
from forebay.planning.simulate.engine import EngineModel, StepTime
from forebay.planning.simulate.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """Seconds of a mean request in each phase."""

    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """`prefill` 0: a fleet of one. `replicas`: the fewest with which two pools reach the goal; None if twice
    as many do not."""

    prefill: int
    decode: int
    goodput: float
    replicas: int | None
    pays: bool


def phase_work(lengths: Sequence[TraceRequest], engine: EngineModel, tpot_s: float) -> PhaseWork:
    """A decode batch is limited by `max_num_seqs`, the KV cache, and a token every `tpot_s`."""
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
    """Requests of `context` tokens, on average, that fill a decode replica."""
    time = engine.step_time
    each = time.decode_s + context * time.context_s
    batch = min(engine.max_num_seqs, engine.kv_tokens / max(context, 1.0))
    if each > 0:
        batch = min(batch, (tpot_s - time.step_s) / each)
    return max(batch, 1.0)


def split_of(replicas: int, work: PhaseWork) -> Split:
    """The split with the highest throughput: its busier pool is the least busy."""
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
    """Simulates the whole trace for each candidate."""
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


ARITHMETIC, BANDWIDTH = 0.6, 0.8
"""Shares of the data sheets' speed that engines reach."""
STEP_S = 5e-4
SAMPLE = 1000
MAX_REPLICAS = 4096
NEARLY = 0.8
LIMITS = ("KV cache", "arithmetic", "memory bandwidth", "max_num_seqs")


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """`replicas`: the fewest with which `goodput` is reached. `prefill`, `decode`: what each phase alone
    would take. `limit`: the resource whose doubling gains most, `gain` times."""

    offered_per_s: float
    requests_per_s: float
    tokens_per_s: float
    replicas: int
    goodput: float
    prefill: float
    decode: float
    limit: str
    gain: float


def engine_of(
    shape: ModelShape,
    accelerator: Accelerator,
    memory: MemoryPlan,
    *,
    max_num_seqs: int = 128,
    max_num_batched_tokens: int = 2048,
) -> EngineModel:
    """By the roofline model. Raises `SettingError` if the accelerator's speeds are unknown."""
    if not accelerator.flops or not accelerator.bandwidth:
        raise SettingError(
            f"--accelerator: of {accelerator.name} only the memory is known, and a workload needs its speed: "
            "give --tflops and --bandwidth, or name it"
        )
    flops, bandwidth = accelerator.flops * ARITHMETIC, accelerator.bandwidth * BANDWIDTH
    time = StepTime(
        step_s=STEP_S + shape.weight_bytes / bandwidth,
        decode_s=2 * shape.active_parameters / flops,
        context_s=memory.kv_bytes_per_token / bandwidth,
        prefill_s=2 * shape.active_parameters / flops,
        attention_s=shape.pair_flops / flops,
    )
    return EngineModel(
        accelerator.name,
        time,
        kv_tokens=max(memory.kv_tokens, 32),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )


def plan_workload(
    trace: Sequence[TraceRequest], engine: EngineModel, slo: Slo, *, goal: float = 0.99
) -> WorkloadPlan:
    """The fewest replicas with which `goal` of the requests meet the SLO; simulates the whole trace.

    Raises `SettingError` if no number is enough.
    """
    if not 0 < goal < 1:
        raise SettingError(f"--goal: expected a share between 0 and 1, found {goal:g}")
    every = -(-len(trace) // SAMPLE)
    sample = [TraceRequest(0.0, one.prompt_tokens, one.output_tokens) for one in trace[::every]]
    capacity = Scenario(sample, engine, 1).capacity_per_s()
    tokens = sum(one.prompt_tokens + one.output_tokens for one in sample) / len(sample)
    span_s = trace[-1].arrived_s - trace[0].arrived_s
    offered = len(trace) / span_s if span_s else float(len(trace))
    replicas, goodput = _search(trace, engine, slo, goal, max(1, int(offered / capacity)))
    prefill, decode = _phases(sample, engine)
    limit, gain = _limit(sample, engine, capacity)
    whole = prefill + decode
    return WorkloadPlan(
        offered_per_s=offered,
        requests_per_s=capacity,
        tokens_per_s=capacity * tokens,
        replicas=replicas,
        goodput=goodput,
        prefill=replicas * prefill / whole,
        decode=replicas * decode / whole,
        limit=limit,
        gain=gain,
    )


def _search(
    trace: Sequence[TraceRequest], engine: EngineModel, slo: Slo, goal: float, first: int
) -> tuple[int, float]:
    found: dict[int, float] = {}

    def goodput(replicas: int) -> float:
        if replicas not in found:
            found[replicas] = Scenario(trace, engine, replicas, slo).run(DEFAULT_POLICY).goodput
        return found[replicas]

    low, high = 0, first
    while goodput(high) < goal:
        if high >= MAX_REPLICAS or (high > 64 and goodput(high) <= goodput(low) + 1e-9):
            raise SettingError(
                f"the SLO is out of reach: with {high} replicas {goodput(high):.1%} of the requests meet it, "
                f"and {goal:.1%} are required; allow more time, or take a faster accelerator"
            )
        low, high = high, min(2 * high, MAX_REPLICAS)
    while high - low > 1:
        middle = (low + high) // 2
        if goodput(middle) >= goal:
            high = middle
        else:
            low = middle
    return high, goodput(high)


def _phases(sample: Sequence[TraceRequest], engine: EngineModel) -> tuple[float, float]:
    prefill = sum(engine.alone_s(one.prompt_tokens) for one in sample) / len(sample)
    outputs = sum(one.output_tokens for one in sample)
    context = sum(one.output_tokens * (one.prompt_tokens + one.output_tokens / 2) for one in sample) / outputs
    batch = min(engine.max_num_seqs, max(engine.kv_tokens / max(context, 1.0), 1.0))
    time = engine.step_time
    each = time.step_s / batch + time.decode_s + context * time.context_s
    return prefill, each * outputs / len(sample)


def _limit(sample: Sequence[TraceRequest], engine: EngineModel, capacity: float) -> tuple[str, float]:
    time = engine.step_time
    tried = (
        replace(engine, kv_tokens=2 * engine.kv_tokens),
        replace(
            engine,
            step_time=replace(
                time,
                decode_s=time.decode_s / 2,
                prefill_s=time.prefill_s / 2,
                attention_s=time.attention_s / 2,
            ),
        ),
        replace(engine, step_time=replace(time, step_s=time.step_s / 2, context_s=time.context_s / 2)),
        replace(
            engine,
            max_num_seqs=2 * engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens + engine.max_num_seqs,
        ),
    )
    gains = [Scenario(sample, each, 1).capacity_per_s() / capacity - 1 for each in tried]
    # If the batch is too small, each step is expensive, so a faster memory gains as much as a larger batch.
    # Then the batch is the limit: report the setting that bounds it before anything that costs money.
    enough = NEARLY * max(gains)
    best = next(at for at in (3, 0, 1, 2) if gains[at] >= enough)
    return LIMITS[best], gains[best]
