"""What calls cost. Amounts are whole numbers of 10^-12 of a currency (`pico`), so that no cost is rounded."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from forebay.engine.protocol import MAX_TOKENS, request_body
from forebay.json_numbers import ExactFloat
from forebay.records import Request, Sampling, Usage

PICO_DIGITS = 12
MICRO = 10**6


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """Of one token each, in 10^-12 of the currency. `cached`: of a prompt's token in the prefix cache."""

    prompt: int
    cached: int
    completion: int

    def cost_pico(self, usage: Usage) -> int:
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        fresh = usage.prompt_tokens - cached
        return fresh * self.prompt + cached * self.cached + usage.completion_tokens * self.completion

    def most_pico(self, prompt_tokens: int, completion_tokens: int) -> int:
        return prompt_tokens * max(self.prompt, self.cached) + completion_tokens * self.completion


TEMPLATE_TOKENS = 256
"""An assumption: most tokens that a chat template adds for itself. What it adds for each message, schema and
tool has fewer tokens than their JSON has bytes.
"""
OWN_LIMITS = ("max_tokens", "max_completion_tokens", "n", "best_of")


def most_prompt_tokens(request: Request) -> int:
    """At most one token per byte of the request's body. Raises `BadRequest` if the body cannot be written."""
    return len(request_body(request, stream=False)) + TEMPLATE_TOKENS


def most_answer_tokens(sampling: Sampling) -> int:
    given = {"max_tokens": sampling.max_tokens, **sampling.extra}
    own, completion, n, best_of = (
        count if type(count) is int and count >= 0 else MAX_TOKENS
        for count in map(given.get, OWN_LIMITS, (0, 0, 1, 1))
    )
    return max(own, completion) * max(n, best_of, 1)


def to_pico(amount: float) -> int:
    return int(Decimal(str(amount)).scaleb(PICO_DIGITS))


def from_pico(pico: int) -> ExactFloat:
    """The amount as a number for JSON, with all its digits: `0.00001275`."""
    whole, part = divmod(pico, 10**PICO_DIGITS)
    return ExactFloat(f"{whole}.{part:0{PICO_DIGITS}}".rstrip("0").rstrip("."))


def cost_text(pico: int) -> str:
    """Short, for a person: `12.30`, `0.0012`."""
    amount = pico / 10**PICO_DIGITS
    return f"{amount:.2f}" if amount >= 1 else f"{Decimal(f'{amount:.2g}'):f}"
