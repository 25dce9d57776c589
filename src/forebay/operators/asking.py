"""Answers what a stateful program asks: its requests come with their messages and their schemas."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from forebay.clock import Clock, SystemClock
from forebay.engine.answer import AnswerCheck
from forebay.errors import ProgramFailed, SettingError
from forebay.operators.answering import Answering, Call
from forebay.operators.counts import CallCounts
from forebay.records import KeyedEvent, Request
from forebay.stateful.program import Ask

MAX_CHECKS = 64
"""Schemas kept compiled; a program has few."""


@dataclass(frozen=True, slots=True)
class AskedEvent(KeyedEvent):
    """What a program asks in a turn of this event."""

    ask: Ask


class Asking(Answering):
    """Answers `AskedEvent`s. Belongs to the event loop on which it was made."""

    def __init__(self, call: Call, counts: CallCounts, clock: Clock | None = None) -> None:
        super().__init__(call, counts, clock)
        self._checks: OrderedDict[bytes, AnswerCheck] = OrderedDict()

    def _request(self, item: KeyedEvent) -> Request:
        assert isinstance(item, AskedEvent)
        ask = item.ask
        priority = self._priority(item.event)
        sampling = self._call.sampling if ask.sampling is None else ask.sampling
        if self._call.send_priority:
            sampling = replace(sampling, extra={**sampling.extra, "priority": priority})
        return Request(
            id=item.id,
            model=self._call.model,
            messages=ask.messages,
            sampling=sampling,
            schema=ask.schema,
            # One key's calls go where its prefix is.
            session=item.key,
            priority=priority,
        )

    def _check_of(self, request: Request) -> AnswerCheck | None:
        if request.schema is None:
            return None
        try:
            name = orjson.dumps(request.schema, option=orjson.OPT_SORT_KEYS)
            check = self._checks.get(name) or AnswerCheck(request.schema, where="the program's schema")
        except (SettingError, TypeError) as error:
            raise ProgramFailed(str(error)) from None
        self._checks[name] = check
        self._checks.move_to_end(name)
        if len(self._checks) > MAX_CHECKS:
            self._checks.popitem(last=False)
        return check


@dataclass(frozen=True)
class OpenAsking:
    """Opens an `Asking` on the running event loop."""

    call: Call
    clock: Callable[[], Clock] = SystemClock

    async def __call__(self, counts: CallCounts) -> Asking:
        return Asking(self.call, counts, self.clock())
