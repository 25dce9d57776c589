"""Checks the figures of `forebay bench` against answers with known times, over real sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.timed_server import MODEL, SentAnswer, Step, TimedAnswer, fetch_log, timed_process
from forebay.bench.client import measure
from forebay.bench.load.schedules import Constant, make_load
from forebay.bench.load.workloads import Exactly, RandomTokens, RandomWords
from forebay.bench.metrics import RequestFigures, request_figures, run_figures
from forebay.bench.records import LoadRun, RequestRecord
from forebay.bench.statistics import percentile
from forebay.bench.targets.openai import OpenAiOptions, OpenAiTarget
from forebay.bench.verdict import judge

MAX_ERROR_S = 0.001
MAX_ERROR = 0.01
"""A figure is right if mean and median are within this share of the truth, or within `MAX_ERROR_S`."""
PROMPT_TOKENS = 32
RATE_PER_S = 10.0


@dataclass(frozen=True, slots=True)
class Case:
    about: str
    answer: TimedAnswer
    output_tokens: int = 20
    chat: bool = False
    reasons: tuple[str, ...] = ()


def steady(count: int, first_s: float, gap_s: float, tokens: int = 1) -> tuple[Step, ...]:
    return (Step(first_s, tokens), *(Step(gap_s, tokens) for _ in range(count - 1)))


STEADY = steady(20, 0.1, 0.02)
STALL = (*steady(10, 0.1, 0.02), Step(0.8), *steady(9, 0.02, 0.02))
CASES: Mapping[str, Case] = {
    "tokens": Case("one token in each chunk", TimedAnswer(STEADY)),
    "role": Case("a first chunk with the role only", TimedAnswer((Step(0.03, 0, True), *STEADY)), chat=True),
    "empty": Case(
        "chunks without text", TimedAnswer((Step(0.03, 0), *STEADY[:10], Step(0.05, 0), *STEADY[1:11]))
    ),
    "several": Case("four tokens in each chunk", TimedAnswer(steady(5, 0.1, 0.08, 4))),
    "first": Case("eight tokens in the first chunk", TimedAnswer((Step(0.1, 8), *STEADY[1:13]))),
    "stall": Case("a pause in the middle", TimedAnswer(STALL)),
    "late usage": Case("the usage long after the last token", TimedAnswer(STEADY, end_after_s=0.3)),
    "one": Case("one token", TimedAnswer((Step(0.1),)), output_tokens=1),
    "no usage": Case("no usage", TimedAnswer(STEADY, usage=False), reasons=("no token count",)),
    "wrong usage": Case(
        "a usage of half the tokens",
        TimedAnswer(STEADY, counted_tokens=10),
        reasons=("fewer tokens than arrived", "other lengths than asked for"),
    ),
    "max_tokens": Case(
        "max_tokens ignored", TimedAnswer(STEADY), output_tokens=12, reasons=("other lengths than asked for",)
    ),
    "cache": Case(
        "a prompt in the prefix cache",
        TimedAnswer(STEADY, cached_tokens=16),
        reasons=("came from a prefix cache",),
    ),
}


@dataclass(frozen=True, slots=True)
class Measure:
    """Mean and median of one figure of all requests of a case, in seconds or a number, and the true ones.

    `worst_error`: of any single request or gap; it includes how late a busy machine woke either side.
    """

    name: str
    mean: float
    true_mean: float
    median: float
    true_median: float
    worst_error: float

    @property
    def right(self) -> bool:
        return is_right(self.mean, self.true_mean) and is_right(self.median, self.true_median)


@dataclass(frozen=True, slots=True)
class CaseFound:
    """`missing`: expected reasons that the verdict lacks; `surplus`: unexpected ones, except for a schedule
    that this machine could not keep."""

    name: str
    about: str
    measures: tuple[Measure, ...]
    missing: tuple[str, ...]
    surplus: tuple[str, ...]
    schedule_delay_max_s: float
    wrong: tuple[str, ...] = field(default=())

    @property
    def right(self) -> bool:
        return not (self.missing or self.surplus or self.wrong) and all(each.right for each in self.measures)


def measure_cases(
    names: Sequence[str], requests: int, note: Callable[[str], None] = lambda _: None
) -> list[CaseFound]:
    found = []
    for name in names:
        note(CASES[name].about)
        found.append(measure_case(name, requests))
    return found


def measure_case(name: str, requests: int) -> CaseFound:
    case = CASES[name]
    with timed_process([case.answer] * requests) as url:
        run = run_case(case, url, requests)
        sent = fetch_log(url)
    return compare(name, case, run, sent)


def target_of(case: Case, url: str) -> OpenAiTarget:
    # With model and extensions set, the target sends no trial requests: each request is one of the load.
    return OpenAiTarget(url, OpenAiOptions(model=MODEL, chat=case.chat, extensions=True))


def load_of(case: Case, requests: int) -> Any:
    kind = RandomWords if case.chat else RandomTokens
    workload = kind(Exactly(PROMPT_TOKENS), Exactly(case.output_tokens))
    return make_load(Constant(RATE_PER_S), workload, requests, seed=16)


def run_case(case: Case, url: str, requests: int) -> LoadRun:
    return measure(target_of(case, url), load_of(case, requests))


def compare(name: str, case: Case, run: LoadRun, sent: Sequence[SentAnswer]) -> CaseFound:
    pairs = list(zip(sorted(run.records, key=lambda record: record.sent_s or 0.0), sent, strict=True))
    errors: dict[str, list[tuple[float, float]]] = {}
    wrong: list[str] = []
    for record, truth in pairs:
        figures = request_figures(record)
        if figures is None:
            wrong.append(f"request {record.index} was not answered: {record.error}")
            continue
        for figure, found, true in _figures(case, record, figures, truth):
            if (found is None) != (true is None):
                wrong.append(f"request {record.index}: {figure} is {found}, and should be {true}")
            elif found is not None and true is not None:
                errors.setdefault(figure, []).append((found, true))
    if not wrong:
        wrong += _run_errors(case, run, sent)
    verdict = judge(run)
    reasons = [reason for reason in verdict.reasons if "could not keep its schedule" not in reason]
    return CaseFound(
        name=name,
        about=case.about,
        measures=tuple(_measure(figure, values) for figure, values in errors.items()),
        missing=tuple(word for word in case.reasons if not any(word in reason for reason in reasons)),
        surplus=tuple(reason for reason in reasons if not any(word in reason for word in case.reasons)),
        schedule_delay_max_s=verdict.schedule_delay_max_s or 0.0,
        wrong=tuple(wrong),
    )


def _figures(
    case: Case, record: RequestRecord, found: RequestFigures, truth: SentAnswer
) -> list[tuple[str, float | None, float | None]]:
    at_s = [chunk_s for chunk_s, _ in truth.chunks]
    true_gaps_s = [after - before for before, after in pairwise(at_s)]
    token_s = [chunk_s for chunk_s, tokens in truth.chunks for _ in range(tokens)]
    true_token_gaps_s = [after - before for before, after in pairwise(token_s)]
    first_s, last_s = at_s[0] - truth.read_s, at_s[-1] - truth.read_s
    n = case.answer.tokens if case.answer.counted_tokens is None else case.answer.counted_tokens
    tpot_s = itl_s = None
    if case.answer.usage and n > 1:
        tpot_s = (last_s - first_s) / (n - 1)
        later = n - truth.chunks[0][1]
        itl_s = (last_s - first_s) / later if later > 0 else None
    counts = case.answer.usage
    rows: list[tuple[str, float | None, float | None]] = [
        ("service_ttft", found.service_ttft_s, first_s),
        ("service_e2el", found.service_e2el_s, last_s),
        ("tpot", found.tpot_s, tpot_s),
        ("itl_mean", found.itl_mean_s, itl_s),
        ("chunks", float(len(found.chunk_gaps_s)), float(len(true_gaps_s))),
        ("token gaps", float(len(found.token_gaps_s)), float(len(true_token_gaps_s) if counts else 0)),
        ("longest_gap", max(found.chunk_gaps_s, default=None), max(true_gaps_s, default=None)),
        ("end", record.ended_s - (record.sent_s or 0.0), truth.ended_s - truth.read_s),
    ]
    rows += [("chunk_gap", *pair) for pair in zip(found.chunk_gaps_s, true_gaps_s, strict=False)]
    if counts:
        rows += [("token_gap", *pair) for pair in zip(found.token_gaps_s, true_token_gaps_s, strict=False)]
    return rows


def _run_errors(case: Case, run: LoadRun, sent: Sequence[SentAnswer]) -> list[str]:
    figures = run_figures(run)
    seconds = max(each.ended_s for each in sent) - sent[0].read_s
    n = case.answer.tokens if case.answer.counted_tokens is None else case.answer.counted_tokens
    truth = {
        "requests_per_s": len(sent) / seconds,
        "output_tokens_per_s": len(sent) * n / seconds if case.answer.usage else None,
    }
    found = []
    for name, true in truth.items():
        value = getattr(figures, name)
        if (value is None) != (true is None):
            found.append(f"{name} is {value}, and should be {true}")
        elif value is not None and true is not None and abs(value / true - 1) > MAX_ERROR:
            found.append(f"{name} is {value:.4g}, and should be {true:.4g}")
    return found


def _measure(name: str, values: Sequence[tuple[float, float]]) -> Measure:
    found, true = ([pair[side] for pair in values] for side in (0, 1))
    return Measure(
        name=name,
        mean=sum(found) / len(found),
        true_mean=sum(true) / len(true),
        median=percentile(sorted(found), 50),
        true_median=percentile(sorted(true), 50),
        worst_error=max(abs(one - other) for one, other in values),
    )


def is_right(found: float, true: float) -> bool:
    return abs(found - true) <= max(MAX_ERROR_S, MAX_ERROR * abs(true))
