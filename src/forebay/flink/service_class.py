"""The service class of an event. Does not import PyFlink: `forebay ask` runs without it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forebay.clock import Clock
from forebay.engine.prompt import FieldTemplate
from forebay.errors import TemplateFailed
from forebay.fleet.autoscale.base import ServiceClass
from forebay.records import KeyedEvent


@dataclass(frozen=True)
class EventClasses:
    """`template` renders the name of an event's service class; if it fails, or names no other, it is the
    `default`."""

    template: FieldTemplate
    default: ServiceClass
    others: tuple[ServiceClass, ...]

    def of(self, item: KeyedEvent) -> ServiceClass:
        try:
            name = self.template.render(item.event.fields, time_ms=item.event.time_ms)
        except TemplateFailed:
            return self.default
        return next((each for each in self.others if each.name == name), self.default)


def due_s(item: KeyedEvent, service: ServiceClass, clock: Clock) -> float:
    """On the monotonic clock, in whole seconds: among those due in the same second, priority decides."""
    # A clock that was set back would make the event's deadline later. One that is set forward makes
    # waiting events overdue at once.
    age_s = max(0.0, (clock.wall_ms() - item.read_ms) / 1000)
    return float(math.floor(clock.monotonic_s() + service.slo_s - age_s))
