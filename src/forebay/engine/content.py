"""Check that a completion contains an answer."""

from __future__ import annotations

from forebay.counted import counted
from forebay.engine.failures import Redactor
from forebay.errors import (
    AnswerRefused,
    ContentFiltered,
    EmptyAnswer,
    OutOfTokens,
    ServerFault,
    ToolCalled,
)
from forebay.records import Completion, Sampling

QUOTE = Redactor()

CUT = "length"
"""The finish reason of an answer cut at `max_tokens` or at the end of the model's context."""
FILTERED = "content_filter"
TOOLS = frozenset(("tool_calls", "function_call"))
BROKEN_OFF = frozenset(("abort", "error"))
"""Finish reasons of vLLM and SGLang for requests that they aborted themselves."""


def check_content(completion: Completion, sampling: Sampling) -> None:
    """Raise the `EngineError` of the cause if `completion` contains no answer.

    A text cut at `max_tokens` is an answer, with the finish reason `length`.
    """
    reason = completion.finish_reason
    if completion.refusal:
        raise AnswerRefused(f"the model refused to answer: {QUOTE(completion.refusal)}")
    if reason == FILTERED:
        raise ContentFiltered(
            f"a content filter of the engine stopped the answer (finish_reason {FILTERED}) after "
            f"{len(completion.text)} characters"
        )
    if completion.tool is not None or reason in TOOLS:
        raise ToolCalled(
            f"the model called the tool {QUOTE(completion.tool or '')!r} instead of answering; remove "
            f"`tools` from sampling.extra, or set `tool_choice: none` there"
        )
    if reason in BROKEN_OFF:
        raise ServerFault(f"the engine aborted its answer (finish_reason {reason})")
    if not completion.text.strip():
        raise _no_content(completion, sampling)


def repeats(sampling: Sampling) -> bool:
    """Whether the same request always gives the same answer (no random sampling)."""
    extra = sampling.extra
    temperature = extra.get("temperature", sampling.temperature)
    return temperature == 0 or extra.get("seed", sampling.seed) is not None


def _no_content(completion: Completion, sampling: Sampling) -> OutOfTokens | EmptyAnswer:
    used = completion.usage.completion_tokens
    thought = completion.reasoning
    found = f": {QUOTE(thought)}" if thought else ""
    if completion.finish_reason == CUT:
        spent = "reasoning tokens" if thought else "tokens of white space" if completion.text else "tokens"
        if used and used < sampling.max_tokens:
            return OutOfTokens(
                f"no content: after {used} {spent} the model's context was full; shorten the prompt, or "
                f"start the engine with a longer context{found}"
            )
        less = " or let the model reason less" if thought else ""
        return OutOfTokens(
            f"no content: {used or sampling.max_tokens} {spent} used up max_tokens ({sampling.max_tokens}); "
            f"raise sampling.max_tokens{less}{found}"
        )
    what = "reasoned and then stopped without content" if thought else "stopped without content"
    return EmptyAnswer(
        f"no content: the model {what} after {counted(used, 'token')} "
        f"(finish_reason {completion.finish_reason}){found}"
    )
