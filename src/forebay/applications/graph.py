"""Puts an application that is a stateful program into a Flink job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from forebay.applications.parts import Parts
from forebay.operators.infer import Inferred
from forebay.operators.stateful import infer_stateful
from forebay.stateful.program import Program

if TYPE_CHECKING:
    from pyflink.datastream import DataStream


class ProgramSettings(Protocol):
    """Settings of an application that is a stateful program. `max_state_bytes`: what a key may keep."""

    @property
    def max_state_bytes(self) -> int: ...

    def program(self, *, event_time: bool) -> Program[Any]: ...


def stateful(settings: ProgramSettings, stream: DataStream, parts: Parts) -> Inferred:
    """The program of `settings` over `stream`. Raises `SettingError` where the pipeline has no key."""
    program = settings.program(event_time=parts.event_time)
    return infer_stateful(stream, program, max_state_bytes=settings.max_state_bytes, **vars(parts))
