"""Many short requests in one batch, and one alone: what batching gains if answers are short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forebay.bench.client import measure
from forebay.bench.load.schedules import Bursts, ClosedLoop, RequestLoad, fresh_nonce, make_load
from forebay.bench.load.workloads import Exactly, RandomTokens, random_ids
from forebay.bench.metrics import output_tokens, request_figures
from forebay.bench.report.document import MeasuredRun, measured_run
from forebay.bench.resources import disturbed
from forebay.bench.statistics import percentile, suffices
from forebay.bench.targets.openai import OpenAiOptions, OpenAiTarget
from forebay.engine.launch.spec import usable_cores
from forebay.errors import EngineError, SettingError

REQUESTS = 1000
"""vLLM takes at most 1,024 prompts in one request, if `VLLM_MAX_COMPLETION_PROMPTS` is not set."""
PROMPT_TOKENS, OUTPUT_TOKENS = 6, 10
ALONE_REPEATS = 20
TIMEOUT_S = 3600.0
MAX_REQUESTS = 100_000
FORMAT = "forebay-bench-burst/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstOptions:
    requests: int = REQUESTS
    repeats: int = ALONE_REPEATS
    prompt_tokens: int = PROMPT_TOKENS
    output_tokens: int = OUTPUT_TOKENS
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.requests <= MAX_REQUESTS:
            raise SettingError(f"requests: expected 1 to {MAX_REQUESTS}, found {self.requests}")

    @property
    def workload(self) -> RandomTokens:
        return RandomTokens(Exactly(self.prompt_tokens), Exactly(self.output_tokens))


@dataclass(frozen=True, slots=True)
class Burst:
    """`alone`: requests one after the other; `batch`: one HTTP request with all prompts; `apart`:
    as many HTTP requests at once, one prompt each."""

    options: BurstOptions
    alone: MeasuredRun
    batch: MeasuredRun | None = None
    apart: MeasuredRun | None = None

    @property
    def complete(self) -> bool:
        return self.apart is not None and self.apart.run.complete


def measure_burst(url: str, model: str | None, options: BurstOptions) -> Burst:
    target = OpenAiTarget(url, OpenAiOptions(model=model))
    warm_up = measured_run(
        measure(target, make_load(ClosedLoop(1), options.workload, 1, seed=options.seed), timeout_s=TIMEOUT_S)
    )
    if not warm_up.run.complete:
        return Burst(options, warm_up)
    load = make_load(ClosedLoop(1), options.workload, options.repeats, seed=options.seed)
    found = Burst(options, measured_run(measure(target, load, timeout_s=TIMEOUT_S)))
    if not found.alone.run.complete:
        return found
    _check("a request alone", found.alone)
    nonce = fresh_nonce()
    prompts = [
        random_ids(options.prompt_tokens, nonce, options.seed, index).tolist()
        for index in range(options.requests)
    ]
    # The batch's prompts replace the load's single prompt.
    whole = OpenAiTarget(
        url, OpenAiOptions(model=target.model, extensions=target.extensions, extra={"prompt": prompts})
    )
    batch = measured_run(measure(whole, _one(options), timeout_s=TIMEOUT_S))
    found = Burst(options, found.alone, batch)
    if not batch.run.complete:
        return found
    _check(f"a batch of {options.requests} prompts", batch)
    load = make_load(Bursts(), options.workload, options.requests, seed=options.seed)
    return Burst(options, found.alone, batch, measured_run(measure(target, load, timeout_s=TIMEOUT_S)))


def burst_document(
    found: Burst, *, provenance: dict[str, Any], others_cores: float | None = None
) -> dict[str, Any]:
    """`alone`, `batch` and `apart` as in `Burst`, in seconds; `gain`: how many times longer the
    requests of the batch would take one after the other."""
    options = found.options
    alone = latencies_s(found.alone)
    document: dict[str, Any] = {
        "format": FORMAT,
        "complete": found.complete,
        "requests": options.requests,
        "prompt_tokens": options.prompt_tokens,
        "output_tokens": options.output_tokens,
        "alone": {"repeats": len(alone), **_percentiles(alone)},
        "others_cores": others_cores,
        "reasons": [reason for reason in _reasons(found, others_cores) if reason],
        "provenance": provenance,
    }
    if found.batch is not None and (took := latencies_s(found.batch)):
        document["batch"] = {"latency_s": took[0], "requests_per_s": options.requests / took[0]}
        document["gain"] = options.requests * percentile(alone, 50) / took[0] if alone else None
    if found.apart is not None and (each := latencies_s(found.apart)):
        document["apart"] = {
            "latency_s": each[-1],
            "requests_per_s": found.apart.figures.requests_per_s,
            "failed": found.apart.figures.failed,
            **_percentiles(each),
        }
    return document


def latencies_s(measured: MeasuredRun) -> list[float]:
    """Sorted times from when each answered request was sent to the end of its answer."""
    figures = (request_figures(record) for record in measured.run.records)
    return sorted(one.service_e2el_s for one in figures if one is not None)


def _percentiles(ordered: list[float]) -> dict[str, float | None]:
    def quantile(percent: float) -> float | None:
        return percentile(ordered, percent) if suffices(len(ordered), percent) else None

    return {"p50_s": quantile(50), "p99_s": quantile(99)}


def _reasons(found: Burst, others_cores: float | None) -> Iterator[str | None]:
    for each in (found.alone, found.batch, found.apart):
        # The batch has more tokens than its load's single prompt.
        if each is not None and each is not found.batch and each.verdict is not None:
            yield from each.verdict.reasons
    if found.batch is not None and found.batch.run.complete:
        asked = found.options.requests * found.options.output_tokens
        got = sum(output_tokens(record) or 0 for record in found.batch.run.records)
        if got != asked:
            yield f"the answers of the batch have {got} tokens, and {asked} were asked for"
    if others_cores is not None:
        yield disturbed(others_cores, len(usable_cores()))


def _check(what: str, measured: MeasuredRun) -> None:
    for record in measured.run.records:
        if record.error is not None:
            raise EngineError(f"{what} failed: {record.error}")


def _one(options: BurstOptions) -> RequestLoad:
    return make_load(ClosedLoop(1), options.workload, 1, seed=options.seed)
