"""The settings `scaling` and `scaling.classes` of a pipeline file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field, Strict

from forebay.documents import suggestion
from forebay.errors import SettingError
from forebay.fields import Model, NotNegativeFloat, PositiveFloat, PositiveInt, wrong
from forebay.fleet.autoscale.base import (
    DEFAULT_CLASS,
    MAX_REPLICAS,
    ReplicaSpeed,
    ScalingLimits,
    ServiceClass,
    Timings,
    replicas_for,
)
from forebay.fleet.autoscale.demand import FRESH_S
from forebay.fleet.autoscale.settings import DEFAULT_SCALING, SCALING_POLICIES, ScalingSettings
from forebay.pipeline.inference_settings import FieldText

CLASS = re.compile(r"[a-z0-9_-]{1,40}")
MAX_CLASSES = 8
RANGE = re.compile(r"([0-9]{1,5})(?:\.\.([0-9]{1,5}))?")


def _policy(name: str) -> str:
    names = SCALING_POLICIES.names()
    if name not in names:
        raise wrong(f"expected one of {', '.join(names)}; found {name[:80]!r}{suggestion(name, names)}")
    return name


def _class(name: str) -> str:
    if not CLASS.fullmatch(name):
        raise wrong(f"expected a name of a-z, 0-9, '-' and '_', at most 40 of them; found {name[:80]!r}")
    if name == DEFAULT_CLASS:
        raise wrong(f"expected another name than {DEFAULT_CLASS!r}: scaling.slo_s is that class's")
    return name


class ClassesSpec(Model):
    """Records whose answers are due sooner or later than others."""

    of: FieldText = Field(
        description="Template of the name of an event's class. An event for which it gives no name of "
        "`slo_s` is of the class `default`, with `scaling.slo_s`."
    )
    slo_s: Annotated[
        dict[
            Annotated[str, AfterValidator(_class)],
            Annotated[PositiveFloat, Field(le=1e6)],
        ],
        Field(min_length=1, max_length=MAX_CLASSES),
    ] = Field(description="For each class, how long its records may wait until their answers begin.")


class ScalingSpec(Model):
    """How many replicas answer, and by which policy."""

    policy: Annotated[str, AfterValidator(_policy)] = Field(
        DEFAULT_SCALING, description="Scaling policy; docs/autoscaling.md lists them."
    )
    min: Annotated[int, Strict(), Field(ge=0, le=MAX_REPLICAS)] = Field(
        0, description="Fewest replicas. With 0, none runs while nothing waits."
    )
    max: Annotated[int, Strict(), Field(ge=1, le=MAX_REPLICAS)] = Field(description="Most replicas.")
    slo_s: PositiveFloat = Field(
        60.0, le=1e6, description="How long a record may wait until its answer begins."
    )
    classes: ClassesSpec | None = Field(
        None,
        description="Classes of service, for which that is another time: what is due first is sent first; "
        "null: all records are alike.",
    )
    boot_s: PositiveFloat = Field(
        60.0, le=1e6, description="How long a replica takes to start; learned once one has started."
    )
    warm_up_s: NotNegativeFloat = Field(
        0.0, le=1e6, description="How long a started replica is still slow: it is started earlier."
    )
    drain_s: NotNegativeFloat = Field(
        10.0,
        le=1e6,
        description="How long a replica takes to finish its requests. One that is not needed stays for as "
        "long as a start and this take.",
    )
    budget_per_hour: PositiveFloat | None = Field(
        None,
        le=1e12,
        description="Most money per hour, with `price_per_hour`: no more replicas than it pays for; null: "
        "as many as `max`.",
    )
    price_per_hour: PositiveFloat | None = Field(
        None, le=1e12, description="What one replica costs per hour, in the same currency."
    )
    every_s: PositiveFloat = Field(5.0, ge=0.5, le=3600, description="Time from one decision to the next.")
    prompt_tokens_per_s: PositiveFloat = Field(
        5000.0,
        description="Tokens of prompts that a busy replica takes in, if it does nothing else. Corrected by "
        "what is seen, with `answer_tokens_per_s`, in the same ratio.",
    )
    answer_tokens_per_s: PositiveFloat = Field(
        500.0, description="Tokens of answers that a busy replica gives, of all its requests together."
    )
    requests_per_replica: PositiveInt = Field(
        128, le=100_000, description="Requests that one replica runs at once."
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Contradictions among the values, each with its key."""
        if self.min > self.max:
            yield "scaling.min", f"expected at most scaling.max ({self.max}), found {self.min}"
        budget, price = self.budget_per_hour, self.price_per_hour
        if budget is None and price is not None:
            yield "scaling.price_per_hour", "expected scaling.budget_per_hour too, found none"
        if price is None and budget is not None:
            yield "scaling.budget_per_hour", "expected scaling.price_per_hour too, found none"
        if budget is not None and price is not None and replicas_for(budget, price) < max(self.min, 1):
            yield (
                "scaling.budget_per_hour",
                f"{budget:g} pays for {replicas_for(budget, price)} replicas at {price:g} each, and at least "
                f"{max(self.min, 1)} are required; raise it, or lower scaling.min",
            )

    @property
    def limits(self) -> ScalingLimits:
        """The limits. Reports older than those that count would make the stream seem empty."""
        return ScalingLimits(
            self.min, self.max, self.budget_per_hour, self.price_per_hour, stale_after_s=FRESH_S
        )

    def settings(self, answer_tokens: int) -> ScalingSettings:
        """The same as a value. An answer is expected to have half of `answer_tokens`, its maximum, until
        there are any."""
        others = {} if self.classes is None else self.classes.slo_s
        return ScalingSettings(
            limits=self.limits,
            policy=self.policy,
            slo_s=self.slo_s,
            timings=Timings(self.boot_s, self.warm_up_s, self.drain_s, self.every_s),
            speed=ReplicaSpeed(
                1 / self.prompt_tokens_per_s, 1 / self.answer_tokens_per_s, self.requests_per_replica
            ),
            answer_tokens=max(answer_tokens / 2, 1.0),
            other_classes=tuple(ServiceClass(name, slo_s) for name, slo_s in others.items()),
        )


def replicas_settings(text: str) -> list[str]:
    """`--replicas 0..2`, or a fixed number, as settings of `--set`. Raises `SettingError`."""
    found = RANGE.fullmatch(text.strip())
    if found is None:
        raise SettingError(f"--replicas: expected a number or a range such as 0..2, found {text[:80]!r}")
    least, most = int(found[1]), int(found[2] or found[1])
    if least > most:
        raise SettingError(
            f"--replicas: expected the smaller number first, found {text}: write {most}..{least}"
        )
    if most == 0:
        raise SettingError("--replicas: expected at least one replica at most, found 0")
    return [f"scaling.min={least}", f"scaling.max={most}"]
