"""Checks that a run's answers have the requested lengths and correct counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from forebay.bench.metrics import output_tokens, prompt_tokens
from forebay.bench.records import LoadRun, RequestRecord

MAX_FAILED_SHARE = 0.001
"""One failure in a hundred leaves the p99 open."""
MAX_WRONG_SHARE = 0.01
MAX_PROMPT_ERROR = 0.05
MAX_TEMPLATE_TOKENS = 2
"""Allowed difference between the server's prompt count and ours: this share, or these tokens."""
MAX_CACHED_SHARE = 0.01
"""Of prompts that share no prefix: a chat template is a smaller part of a long prompt."""
MAX_COUNTER_ERROR = 0.01
PROBE_TOKENS = 16
"""Allowed difference between the engine's count and the answers': a share, or one probe."""
CLOCK_STEP_S = 0.001
MAX_ERROR_CHARS = 200


def _was_complete(run: LoadRun) -> str | None:
    if run.complete:
        return None
    asked = run.asked.get("requests")
    of = f" of {asked}" if asked is not None else ""
    return f"interrupted: {len(run.records)}{of} requests were recorded"


def _had_answers(run: LoadRun) -> str | None:
    if not run.records:
        return "no request was sent"
    if not _answered(run):
        return "no request was answered"
    return None


def _times_run_forward(run: LoadRun) -> str | None:
    wrong = [record for record in run.records if _ran_back(record)]
    if not wrong:
        return None
    return f"times run backwards in {_of(wrong, run.records)}, first in request {wrong[0].index}"


def _ran_back(record: RequestRecord) -> bool:
    times_s = [chunk.at_s for chunk in record.chunks]
    if record.sent_s is not None:
        if record.sent_s < record.due_s - CLOCK_STEP_S:
            return True
        times_s.insert(0, record.sent_s)
    if record.first_byte_s is not None:
        times_s.insert(0 if record.sent_s is None else 1, record.first_byte_s)
    times_s.append(record.ended_s)
    return any(after < before for before, after in pairwise(times_s)) or not all(map(math.isfinite, times_s))


def _few_failed(run: LoadRun) -> str | None:
    failed = [record for record in run.records if not record.answered]
    if len(failed) <= MAX_FAILED_SHARE * len(run.records):
        return None
    (error, times), *_ = Counter((record.error or "")[:MAX_ERROR_CHARS] for record in failed).most_common()
    return f"{_of(failed, run.records)} failed; most often ({times}): {error}"


def _had_counts(run: LoadRun) -> str | None:
    answered = _answered(run)
    without = [record for record in answered if output_tokens(record) is None]
    if not without:
        return None
    return f"{_of(without, answered)} have no token count, so there are no token rates"


def _had_first_tokens(run: LoadRun) -> str | None:
    answered = _answered(run)
    without = [record for record in answered if output_tokens(record) and not record.chunks]
    if len(without) <= MAX_WRONG_SHARE * len(answered):
        return None
    return (
        f"{_of(without, answered)} have tokens by their usage and no event with any of the answer (request "
        f"{without[0].index}, finish reason {without[0].finish_reason}): they are missing from the times to "
        "first token"
    )


def _counts_agree(run: LoadRun) -> str | None:
    answered = _answered(run)
    wrong = [record for record in answered if _disagrees(record)]
    if len(wrong) > MAX_WRONG_SHARE * len(answered):
        one = wrong[0]
        return (
            f"the usage of {_of(wrong, answered)} has fewer tokens than arrived; request {one.index}: "
            f"{one.output_tokens} tokens by its usage, {_came(one)} arrived"
        )
    return None


def _came(record: RequestRecord) -> int:
    return sum(1 if chunk.tokens is None else chunk.tokens for chunk in record.chunks)


def _disagrees(record: RequestRecord) -> bool:
    return record.output_tokens is not None and _came(record) > record.output_tokens


def _engine_agrees(run: LoadRun) -> str | None:
    engine = _counted(run, "generation_tokens")
    counts = [output_tokens(record) for record in run.records]
    if engine is None or not counts or len(_answered(run)) < len(counts) or None in counts:
        return None
    total = sum(count for count in counts if count is not None)
    if abs(engine - total) <= max(PROBE_TOKENS, MAX_COUNTER_ERROR * total):
        return None
    return (
        f"the engine generated {engine:.0f} tokens during the run, and the answers have {total} by their "
        f"usage: something else used the engine, or a count is wrong"
    )


def _had_its_lengths(run: LoadRun) -> str | None:
    answered = _answered(run)
    wrong = [record for record in answered if _has_other_length(record)]
    if len(wrong) <= MAX_WRONG_SHARE * len(answered):
        return None
    one = wrong[0]
    return (
        f"{_of(wrong, answered)} have other lengths than asked for; request {one.index}: prompt of "
        f"{prompt_tokens(one)} tokens for {_or_any(one.asked_prompt_tokens)}, answer of {output_tokens(one)} "
        f"for {'' if one.asked_exact else 'at most '}{_or_any(one.asked_output_tokens)}"
    )


def _has_other_length(record: RequestRecord) -> bool:
    asked, found = record.asked_output_tokens, output_tokens(record)
    if asked is not None and found is not None and (found > asked or (record.asked_exact and found < asked)):
        return True
    asked, found = record.asked_prompt_tokens, record.prompt_tokens
    if asked is None or found is None:
        return False
    return abs(found - asked) > max(MAX_TEMPLATE_TOKENS, MAX_PROMPT_ERROR * asked)


def _had_no_cache(run: LoadRun) -> str | None:
    if any(record.group is not None or record.session is not None for record in run.records):
        return None
    counted = [record for record in _answered(run) if record.cached_tokens is not None]
    queries: float = sum(prompt_tokens(record) or 0 for record in counted)
    hits: float = sum(record.cached_tokens or 0 for record in counted)
    if not counted:
        queries = _counted(run, "prefix_cache_queries") or 0.0
        hits = _counted(run, "prefix_cache_hits") or 0.0
    if hits <= MAX_CACHED_SHARE * queries:
        return None
    return (
        f"{hits / queries if queries else 1.0:.1%} of the prompts' tokens came from a prefix cache, but no "
        f"prompts share a prefix: times to first token are too short"
    )


ANSWER_CHECKS: tuple[Callable[[LoadRun], str | None], ...] = (
    _was_complete,
    _had_answers,
    _times_run_forward,
    _few_failed,
    _had_counts,
    _had_first_tokens,
    _counts_agree,
    _engine_agrees,
    _had_its_lengths,
    _had_no_cache,
)


def _answered(run: LoadRun) -> list[RequestRecord]:
    return [record for record in run.records if record.answered]


def _counted(run: LoadRun, name: str) -> float | None:
    sent_s = [record.sent_s for record in run.records if record.sent_s is not None]
    seen = [(sample.at_s, sample.values[name]) for sample in run.samples if name in sample.values]
    if not sent_s or len(seen) < 2:
        return None
    (first_s, first), (last_s, last) = min(seen), max(seen)
    if first_s > min(sent_s) or last_s < max(record.ended_s for record in run.records) or last < first:
        return None
    return last - first


def _of(some: Sequence[object], all_: Sequence[object]) -> str:
    return f"{len(some)} of {len(all_)} requests"


def _or_any(count: int | None) -> str:
    return "any" if count is None else str(count)
