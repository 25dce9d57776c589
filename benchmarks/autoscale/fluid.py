"""A fleet that boots, serves and drains, simulated as a flow of work: whole days in a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forebay.planning.simulate import Scenario
from forebay.planning.simulate.engine import EngineModel
from forebay.planning.simulate.traces import TraceRequest

Array = NDArray[np.float64]
SAMPLE = 2000
"""Requests of a trace that are used for the fit."""
SPREAD_S = 60


@dataclass(frozen=True, slots=True)
class WorkModel:
    """Seconds of a busy replica's time per request, and the requests in its batch. `scale` makes
    the sum equal to what the step-by-step simulator needs for the trace."""

    engine: EngineModel
    batch: float
    scale: float
    mean_output: float
    mean_context: float
    mean_work_s: float
    output_s: float
    prompt_s: float

    @classmethod
    def fit(cls, trace: Many[TraceRequest], engine: EngineModel) -> WorkModel:
        every = max(1, len(trace) // SAMPLE)
        sample = [TraceRequest(0.0, one.prompt_tokens, one.output_tokens) for one in trace[::every]]
        prompts = np.array([one.prompt_tokens for one in sample], float)
        outputs = np.array([one.output_tokens for one in sample], float)
        contexts = prompts + outputs / 2
        context = float((contexts * outputs).sum() / outputs.sum())
        batch = float(min(engine.max_num_seqs, max(1.0, engine.kv_tokens / context)))
        bare = _work_s(prompts, outputs, engine, batch)
        took_s = len(sample) / Scenario(sample, engine, 1).capacity_per_s()
        scale = took_s / float(bare.sum())
        decode = scale * (outputs * _token_s(contexts, engine, batch)).sum()
        prefill = scale * float(bare.sum()) - decode
        return cls(
            engine=engine,
            batch=batch,
            scale=scale,
            mean_output=float(outputs.mean()),
            mean_context=float(contexts.mean()),
            mean_work_s=took_s / len(sample),
            output_s=float(decode / outputs.sum()),
            prompt_s=float(prefill / prompts.sum()),
        )

    def work_s(self, prompts: Array, outputs: Array) -> Array:
        return self.scale * _work_s(prompts, outputs, self.engine, self.batch)

    def running(self, use: float) -> float:
        """Requests in the batch of a replica that is busy for this share of its capacity, 0 to 1
        (Little's law)."""
        time = self.engine.step_time
        share = min(max(use, 0.0), 1.0)
        tokens_per_s = share * self.mean_output / self.mean_work_s
        each_s = time.decode_s + self.mean_context * time.context_s
        decode_share = tokens_per_s * each_s
        prefill_share = share * self.prompt_s * self._mean_prompt / self.mean_work_s
        free = max(1 - decode_share - prefill_share, 1e-3)
        return float(min(tokens_per_s * time.step_s / free, self.batch))

    @property
    def _mean_prompt(self) -> float:
        return self.mean_context - self.mean_output / 2

    @property
    def stay_s(self) -> float:
        """How long a request stays on a half-busy replica: the time of a drain."""
        return self.running(0.5) / (0.5 / self.mean_work_s)


def _token_s(contexts: Array, engine: EngineModel, batch: float) -> Array:
    time = engine.step_time
    return time.step_s / batch + time.decode_s + contexts * time.context_s


def _work_s(prompts: Array, outputs: Array, engine: EngineModel, batch: float) -> Array:
    time, budget = engine.step_time, engine.max_num_batched_tokens
    prefill: Array = prompts * time.prefill_s + prompts * prompts / 2 * time.attention_s
    prefill += prompts / budget * time.prefill_step_s
    return prefill + outputs * _token_s(prompts + outputs / 2, engine, batch)


@dataclass(frozen=True, slots=True)
class Load:
    """Arrivals per second: requests, their tokens, and their work; all of one length."""

    requests: Array
    prompt: Array
    output: Array
    work_s: Array

    def __len__(self) -> int:
        return len(self.requests)

    def times(self, factor: float) -> Load:
        return Load(self.requests * factor, self.prompt * factor, self.output * factor, self.work_s * factor)

    def part(self, begin: int, end: int) -> Load:
        return Load(*(values[begin:end] for values in (self.requests, self.prompt, self.output, self.work_s)))


def load_of(
    trace: Many[TraceRequest],
    model: WorkModel,
    *,
    stretch: float = 1.0,
    replicas: float | None = None,
    seed: int = 0,
) -> Load:
    """A trace by the second, with its arrivals `stretch` times as far apart."""
    at = np.array([int(one.arrived_s * stretch) for one in trace])
    prompts = np.array([one.prompt_tokens for one in trace], float)
    outputs = np.array([one.output_tokens for one in trace], float)
    work = model.work_s(prompts, outputs)
    seconds = int(at.max()) + 1
    values = [
        np.bincount(at, each, seconds).astype(float) for each in (np.ones(len(at)), prompts, outputs, work)
    ]
    if replicas is None:
        return Load(*values)
    width = max(1, min(SPREAD_S, seconds))
    box = np.ones(width) / width
    expected = Load(*(np.convolve(each, box, "same") for each in values))
    return drawn(expected.times(replicas * seconds / float(work.sum())), seed)


def drawn(expected: Load, seed: int) -> Load:
    """Random arrivals at the expected rate of each second (a Poisson process)."""
    random = np.random.default_rng(seed)
    count = random.poisson(expected.requests)
    factor = np.where(expected.requests > 0, count / np.maximum(expected.requests, 1e-12), 0.0)
    return Load(
        count.astype(float), expected.prompt * factor, expected.output * factor, expected.work_s * factor
    )


@dataclass(frozen=True, slots=True)
class Cohort:
    arrived: int
    requests: float
    prompt: float
    work_s: float


@dataclass(frozen=True, slots=True)
class View:
    second: int
    ready: int
    starting: tuple[int, ...]
    draining: int
    booted_s: tuple[float, ...]
    waiting: Many[Cohort]
    late: Cohort
    running: float
    use: float


Decide = Callable[[View], int]


@dataclass(slots=True)
class FleetRun:
    """The result of a run: requests in time over all, replica-seconds paid, starts and stops, the largest
    backlog in tokens, and the number of paid and of ready replicas each second."""

    goodput: float = 0.0
    replica_seconds: float = 0.0
    actions: int = 0
    max_backlog_tokens: float = 0.0
    paid: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)


def run_fleet(
    load: Load,
    model: WorkModel,
    decide: Decide,
    *,
    slo_s: float,
    boot_s: float,
    start: int = 1,
    interval_s: int = 5,
    most_s: int = 6 * 3600,
) -> FleetRun:
    """Serve the load with the replicas that `decide` asks for; a replica is paid until its drain ends."""
    found = FleetRun()
    drain_s, slo, boot = max(1, round(model.stay_s)), round(slo_s), round(boot_s)
    requests, prompt, work = load.requests.tolist(), load.prompt.tolist(), load.work_s.tolist()
    output = load.output.tolist()
    ready = start
    starting: deque[int] = deque()
    draining: deque[int] = deque()
    booted: list[float] = []
    waiting: deque[list[float]] = deque()
    late_work = late_requests = late_prompt = backlog = 0.0
    good = 0.0
    use = 0.0
    offered = len(requests)
    mean_tokens = sum(prompt) + sum(output)
    per_work = mean_tokens / max(sum(work), 1e-9)
    second = 0
    while second < offered + most_s:
        while starting and starting[0] + boot <= second:
            booted.append(float(second - starting.popleft()))
            ready += 1
        while draining and draining[0] <= second:
            draining.popleft()
        if second < offered:
            if requests[second]:
                waiting.append([second, requests[second], prompt[second], work[second]])
                backlog += work[second]
        elif backlog < 1e-6:
            break
        if second % interval_s == 0:
            # The policy converts these to signals at once, and keeps no reference.
            view = View(
                second, ready, tuple(starting), len(draining), tuple(booted),
                [Cohort(int(one[0]), one[1], one[2], one[3]) for one in waiting],
                Cohort(-1, late_requests, late_prompt, late_work),
                ready * model.running(use) + len(draining), use,
            )  # fmt: skip
            booted.clear()
            wanted = max(decide(view), 0)
            now = ready + len(starting)
            if wanted != now:
                found.actions += 1
            for _ in range(now, wanted):
                starting.append(second)
            for _ in range(wanted, now):
                if starting:
                    starting.pop()
                else:
                    ready -= 1
                    draining.append(second + drain_s)
            if boot == 0 and starting:
                ready += len(starting)
                starting.clear()
        left = float(ready)
        while waiting:
            first = waiting[0]
            if second - first[0] > slo:
                late_requests += first[1]
                late_prompt += first[2]
                late_work += first[3]
                waiting.popleft()
                continue
            if left <= 0:
                break
            if first[3] <= left:
                left -= first[3]
                good += first[1]
                waiting.popleft()
            else:
                kept = 1 - left / first[3]
                good += first[1] * (1 - kept)
                first[1] *= kept
                first[2] *= kept
                first[3] -= left
                left = 0.0
        if left > 0 and late_work > 0:
            kept = max(0.0, 1 - left / late_work)
            left = max(0.0, left - late_work)
            late_work, late_requests, late_prompt = late_work * kept, late_requests * kept, late_prompt * kept
        backlog = max(0.0, backlog - (ready - left))
        use = (ready - left) / ready if ready else 0.0
        paid = ready + len(starting) + len(draining)
        found.replica_seconds += paid
        found.max_backlog_tokens = max(found.max_backlog_tokens, backlog * per_work)
        found.paid.append(paid)
        found.ready.append(ready)
        second += 1
    # Replicas that are still up drain, too.
    found.replica_seconds += ready * drain_s
    found.goodput = good / max(float(sum(requests)), 1e-9)
    return found
