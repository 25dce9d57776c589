"""Check before the start that the model's context is long enough for a pipeline's largest call."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.engine.replica import ServedModel
from forebay.errors import SettingError


@dataclass(frozen=True, slots=True)
class ContextNeed:
    """The context that the largest call takes.

    Attributes:
        tokens: Prompt and answer together, an estimate.
        key: The setting that decides it.
        what: The call, for messages.
        adjustable: How many of `tokens` the setting controls.
        least: The smallest value of the setting.
    """

    tokens: int
    key: str
    what: str
    adjustable: int
    least: int = 1


def check_context(need: ContextNeed, served: ServedModel) -> None:
    """Raise `SettingError` if the context of `served` is known and shorter than `need`."""
    context = served.max_model_len
    if context is None or need.tokens <= context:
        return
    most = need.adjustable - (need.tokens - context)
    lower = f", or set {need.key} to at most {most}" if most >= need.least else ""
    raise SettingError(
        f"{need.key}: {need.what} takes up to {need.tokens:,} tokens of context, and the model "
        f"{served.name!r} has {context:,}: start the engine with a longer context (vLLM: `--max-model-len "
        f"{need.tokens}`, `forebay engine up --max-model-len {need.tokens}`){lower}"
    )


def answer_need(max_tokens: int) -> ContextNeed:
    return ContextNeed(max_tokens + 1, "sampling.max_tokens", "the answer with its prompt", max_tokens)
