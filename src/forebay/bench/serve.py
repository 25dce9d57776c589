"""`forebay bench serve`: turns options into loads, and runs them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forebay.bench.client import TIMEOUT_S, OnProgress, measure
from forebay.bench.load.files import FilePrompts, read_conversations, read_prompts
from forebay.bench.load.schedules import (
    Bursts,
    ClosedLoop,
    Constant,
    Gamma,
    Poisson,
    Ramp,
    RequestLoad,
    Schedule,
    TraceReplay,
    check_rate,
    make_load,
)
from forebay.bench.load.workloads import (
    PrefixGroups,
    RandomTokens,
    RandomWords,
    SessionWorkload,
    TracePrompts,
    Workload,
    read_lengths,
)
from forebay.bench.metrics import RequestSlo
from forebay.bench.provenance import provenance
from forebay.bench.report.document import MeasuredRun, measured_run
from forebay.bench.resources import GpuResources, ProcessResources
from forebay.bench.sampling import EngineSignals, Sampler, Source, fetch_version
from forebay.bench.targets.openai import OpenAiOptions, OpenAiTarget
from forebay.bench.targets.others import TENSORRT_LLM, VLLM, TgiTarget, TritonOptions, TritonTarget
from forebay.errors import SettingError
from forebay.planning.simulate.traces import TraceRequest, read_trace

OPENAI, CHAT, TGI, TRITON, TRITON_TRTLLM = "openai", "chat", "tgi", "triton", "triton-trtllm"
CONCURRENCY = 8
REQUESTS = 100

ServedTarget = OpenAiTarget | TgiTarget | TritonTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    url: str
    protocol: str = OPENAI
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def target(self) -> ServedTarget:
        """Raises `SettingError` if options do not fit together."""
        if self.protocol in (OPENAI, CHAT):
            return OpenAiTarget(
                self.url,
                OpenAiOptions(
                    model=self.model, chat=self.protocol == CHAT, api_key=self.api_key, extra=self.extra
                ),
            )
        if self.protocol == TGI:
            if self.extra:
                raise SettingError("--extra: Text Generation Inference takes no further fields")
            return TgiTarget(self.url, api_key=self.api_key)
        backend = TENSORRT_LLM if self.protocol == TRITON_TRTLLM else VLLM
        options = TritonOptions(
            model=self.model or "", backend=backend, api_key=self.api_key, extra=self.extra
        )
        return TritonTarget(self.url, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options of the load, each rate or concurrency a run, repeated `repeats` times.

    At most one of `rates`, `concurrencies`, `ramp`, `bursts` and `trace`. An infinite rate: all at once.
    `exact` None: as the workload decides.
    """

    rates: Sequence[float] = ()
    concurrencies: Sequence[int] = ()
    burstiness: float | None = None
    constant: bool = False
    ramp: str | None = None
    bursts: str | None = None
    trace: Path | None = None
    speed: float = 1.0
    requests: int | None = None
    seconds: float | None = None
    prompt_tokens: str = "512"
    output_tokens: str | None = None
    exact: bool | None = None
    prefix: str | None = None
    turns: int | None = None
    data: Path | None = None
    conversations: Path | None = None
    seed: int = 0
    repeats: int = 1

    def plan(self, *, texts: bool) -> list[ServePlan]:
        """All runs in order. `texts`: the server accepts no token ids. Raises `SettingError`."""
        trace = None if self.trace is None else read_trace(self.trace)
        workload = self._workload(trace, texts=texts)
        plans = []
        for wanted in self._schedules(trace):
            requests = self._requests(wanted, trace, workload)
            schedule = self._filled(wanted, requests)
            plans += [
                ServePlan(schedule, workload, requests, self.seed + turn) for turn in range(self.repeats)
            ]
        return plans

    def schedules(self) -> list[Schedule | ClosedLoop]:
        """Raises as `plan`."""
        return self._schedules(None if self.trace is None else read_trace(self.trace))

    def _filled(self, schedule: Schedule | ClosedLoop, requests: int) -> Schedule | ClosedLoop:
        if not isinstance(schedule, ClosedLoop) or not 0 < requests < schedule.concurrency:
            return schedule
        if self.concurrencies:
            raise SettingError(
                f"--concurrency {schedule.concurrency}: expected no more than the {requests} requests that "
                "there are"
            )
        return ClosedLoop(requests)

    def _schedules(self, trace: Sequence[TraceRequest] | None) -> list[Schedule | ClosedLoop]:
        given = {
            "--rate": self.rates,
            "--concurrency": self.concurrencies,
            "--ramp": self.ramp,
            "--bursts": self.bursts,
            "--trace": trace,
        }
        named = [name for name, value in given.items() if value]
        if len(named) > 1:
            raise SettingError(f"{' and '.join(named)} decide when to send: expected one of them")
        if (self.burstiness is not None or self.constant) and not self.rates:
            raise SettingError("--burstiness and --constant are about a rate: give --rate")
        if self.burstiness is not None and self.constant:
            raise SettingError("--burstiness: expected none with --constant")
        if self.rates:
            return [self._at_rate(rate) for rate in self.rates]
        if self.ramp:
            first, last, over_s = _numbers("--ramp", self.ramp, "FROM:TO:SECONDS")
            return [Ramp(first, last, over_s, even=False)]
        if self.bursts:
            size, every_s = _numbers("--bursts", self.bursts, "SIZE:SECONDS")
            if size != int(size):
                raise SettingError(f"--bursts: expected a whole number of requests, found {size:g}")
            return [Bursts(int(size), every_s)]
        if trace is not None:
            assert self.trace is not None
            return [TraceReplay([one.arrived_s for one in trace], self.speed, self.trace.name)]
        return [ClosedLoop(concurrency) for concurrency in self.concurrencies or (CONCURRENCY,)]

    def _at_rate(self, rate: float) -> Schedule:
        if math.isinf(rate) and rate > 0:
            return Bursts()
        check_rate("--rate", rate)
        if self.constant:
            return Constant(rate)
        return Poisson(rate) if self.burstiness is None else Gamma(rate, self.burstiness)

    def _requests(
        self, schedule: Schedule | ClosedLoop, trace: Sequence[TraceRequest] | None, workload: Workload
    ) -> int:
        if self.requests is not None and self.seconds is not None:
            raise SettingError("--requests and --seconds: expected one of them")
        if self.requests is not None:
            return self.requests
        if self.seconds is not None:
            rate = schedule.asked().get("rate_per_s")
            if rate is None or not 0 < self.seconds <= 1e6:
                raise SettingError(
                    f"--seconds {self.seconds:g}: expected more than 0, and a --rate that is not infinite; "
                    "elsewhere give --requests"
                )
            return max(1, round(float(rate) * self.seconds))
        if trace is not None:
            return len(trace)
        return len(workload.found) if isinstance(workload, FilePrompts) else REQUESTS

    def _workload(self, trace: Sequence[TraceRequest] | None, *, texts: bool) -> Workload:
        given = {
            "--prefix": self.prefix,
            "--turns": self.turns,
            "--data": self.data,
            "--sharegpt": self.conversations,
            "--trace": trace,
        }
        named = [name for name, value in given.items() if value]
        if len(named) > 1:
            raise SettingError(f"{' and '.join(named)} decide what to send: expected one of them")
        output = read_lengths(self.output_tokens or "128")
        own = None if self.output_tokens is None else output
        if self.data is not None:
            return read_prompts(self.data, own or output, exact=self.exact is not False, seed=self.seed)
        if self.conversations is not None:
            return read_conversations(self.conversations, own, exact=bool(self.exact), seed=self.seed)
        exact, prompt = self.exact is not False, read_lengths(self.prompt_tokens)
        if texts and named:
            raise SettingError(f"{named[0]} makes prompts of tokens, and this protocol takes texts only")
        if self.prefix is not None:
            groups, tokens = _numbers("--prefix", self.prefix, "GROUPS:TOKENS")
            return PrefixGroups(int(groups), int(tokens), prompt, output, exact)
        if self.turns is not None:
            return SessionWorkload(self.turns, prompt, prompt, output, exact)
        if trace is not None:
            assert self.trace is not None
            return TracePrompts(trace, source=self.trace.name, exact=exact)
        return RandomWords(prompt, output, exact) if texts else RandomTokens(prompt, output, exact)


@dataclass(frozen=True, slots=True)
class ServePlan:
    schedule: Schedule | ClosedLoop
    workload: Workload
    requests: int
    seed: int

    def load(self) -> RequestLoad:
        """With prompts that no earlier run has sent."""
        return make_load(self.schedule, self.workload, self.requests, seed=self.seed)


def serve_runs(
    target: ServedTarget,
    plans: Sequence[ServePlan],
    *,
    slo: RequestSlo | None = None,
    timeout_s: float = TIMEOUT_S,
    on_progress: OnProgress | None = None,
    origin: Mapping[str, Any] | None = None,
    sources: Callable[[], Sequence[Source]] = tuple,
) -> Iterator[MeasuredRun]:
    for plan in plans:
        with Sampler(sources()) as sampler:
            run = measure(target, plan.load(), timeout_s=timeout_s, on_progress=on_progress)
        run = replace(run, samples=sampler.samples(run.began_at))
        seen = {"target": target.name, "model": target.model, **(origin or {})}
        yield measured_run(replace(run, provenance=seen), slo)
        if not run.complete:
            return


def run_provenance(
    url: str, api_key: str | None, *, data: Path | None, processes: Mapping[str, int] | None = None
) -> dict[str, Any]:
    return provenance(
        command=["forebay", *sys.argv[1:]],
        engine_version=fetch_version(url, api_key=api_key),
        data=data,
        processes=processes,
        secrets=() if api_key is None else (api_key,),
    )


def run_sources(url: str, api_key: str | None, processes: Mapping[str, int]) -> list[Source]:
    sources: list[Source] = [EngineSignals.at(url, api_key=api_key), GpuResources()]
    return [*sources, ProcessResources(processes)] if processes else sources


def _numbers(option: str, text: str, form: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) != form.count(":") + 1 or not all(map(math.isfinite, numbers)):
        raise SettingError(f"{option}: expected {form}, found {text[:80]!r}")
    return numbers
