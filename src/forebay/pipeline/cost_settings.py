"""What a pipeline's calls cost, and the most that they may cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Protocol

from pydantic import AfterValidator, Field, Strict

from forebay.apps.base import ApplicationSettings
from forebay.engine.prices import OWN_LIMITS, TokenPrices, to_pico
from forebay.errors import SettingError
from forebay.fields import Model, PositiveFloat, wrong
from forebay.pipeline.inference_settings import SamplingSpec

ANY_MODEL = "*"
MILLION = 10**6
UNPRICED = ("model", "messages", "prompt", "chat_template")
PRICE_DIGITS = 6
"""A token's price is then a whole number of 10^-12 of the currency."""


def _price(value: float) -> float:
    if Decimal(str(value)).scaleb(PRICE_DIGITS) % 1:
        raise wrong(f"expected a price with at most {PRICE_DIGITS} decimals, found {value!r}")
    return value


Price = Annotated[float, Strict(), Field(ge=0, le=1e6), AfterValidator(_price)]
ModelName = Annotated[str, Field(min_length=1, max_length=500)]


class PricesSpec(Model):
    """Prices of a model, in any one currency, per million tokens."""

    prompt: Price = Field(description="Of a prompt's tokens.")
    cached: Price | None = Field(
        None, description="Of those of them that were in the engine's prefix cache; null: as `prompt`."
    )
    completion: Price = Field(description="Of an answer's tokens, reasoning included.")

    def value(self) -> TokenPrices:
        prices = (self.prompt, self.prompt if self.cached is None else self.cached, self.completion)
        return TokenPrices(*(to_pico(price) // MILLION for price in prices))


class BudgetSpec(Model):
    """The most that calls may cost; needs `prices` and `key`."""

    per_key_per_day: Annotated[PositiveFloat, Field(le=1e9)] = Field(
        description="What each key may spend in a day (UTC, by the clock of the machine), in the currency of "
        "`prices`. Calls beyond it are not made: their events become dead letters with the cause `budget`."
    )


class PricedPipeline(Protocol):
    @property
    def prices(self) -> Mapping[str, PricesSpec] | None: ...

    @property
    def budget(self) -> BudgetSpec | None: ...

    @property
    def key(self) -> str | None: ...

    @property
    def application(self) -> ApplicationSettings | None: ...

    @property
    def sampling(self) -> SamplingSpec: ...


def cost_problems(pipeline: PricedPipeline, model: str | None) -> Iterator[tuple[str, str]]:
    try:
        if model is not None:
            prices_of(pipeline.prices, model)
    except SettingError as error:
        yield "prices", str(error).removeprefix("prices: ")
    if pipeline.prices is not None:
        yield from _extra_problems(pipeline.sampling.extra)
    if pipeline.budget is None:
        return
    if pipeline.prices is None:
        yield "budget", "expected 'prices' with it, found none: add what a million tokens cost"
    application = pipeline.application
    if application is not None and not application.needs_key:
        yield "budget", f"expected none with application {application.type}, which keeps nothing by 'key'"
    elif pipeline.key is None:
        yield "budget", "expected a 'key' template with it, found none: add key, such as '{{ user }}'"


def _extra_problems(extra: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name in OWN_LIMITS:
        count = extra.get(name, 1)
        if type(count) is not int or count < 1:
            yield f"sampling.extra.{name}", f"expected a whole number > 0 with prices, found {count!r:.40}"
    for name in UNPRICED:
        if name in extra:
            yield f"sampling.extra.{name}", "expected none with prices: what a call costs would be unknown"


def prices_of(prices: Mapping[str, PricesSpec] | None, model: str) -> TokenPrices | None:
    """Raises `SettingError` if there are prices, but none for `model`."""
    if prices is None:
        return None
    found = prices.get(model) or prices.get(ANY_MODEL)
    if found is None:
        raise SettingError(
            f"prices: expected the model {model!r}, or '{ANY_MODEL}' for any, found "
            f"{', '.join(map(repr, prices))[:200]}"
        )
    return found.value()
