"""What calls cost. Amounts are whole numbers of 10^-12 of a currency (`pico`), so that no cost is rounded."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from forebay.json_numbers import ExactFloat
from forebay.records import Usage

PICO_DIGITS = 12
MICRO = 10**6
"""In a millionth of the currency."""


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

    def most_pico(self, prompt_bytes: int, max_tokens: int) -> int:
        """What a call costs at most: a token of its prompt has at least one byte."""
        return prompt_bytes * max(self.prompt, self.cached) + max_tokens * self.completion


def to_pico(amount: float) -> int:
    """`amount` as it is written, such as 0.1; digits beyond 10^-12 are dropped."""
    return int(Decimal(str(amount)).scaleb(PICO_DIGITS))


def from_pico(pico: int) -> ExactFloat:
    """The amount as a number for JSON, with all its digits: `0.00001275`."""
    whole, part = divmod(pico, 10**PICO_DIGITS)
    return ExactFloat(f"{whole}.{part:0{PICO_DIGITS}}".rstrip("0").rstrip("."))


def cost_text(pico: int) -> str:
    """Short, for a person: `12.30`, `0.0012`."""
    amount = pico / 10**PICO_DIGITS
    return f"{amount:.2f}" if amount >= 1 else f"{Decimal(f'{amount:.2g}'):f}"
