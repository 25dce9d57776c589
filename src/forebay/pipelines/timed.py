"""The time of a source's records, as a pipeline file says it."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field

from forebay.connectors.times import EventTime
from forebay.errors import SettingError
from forebay.pipelines.fields import FieldPath, Model, PositiveInt, wrong


def _time_format(value: str) -> str:
    try:
        EventTime("time", value)
    except SettingError as error:
        raise wrong(f"expected another format; {error}") from None
    if "%" in value:
        try:
            datetime.strptime("", value)
        except (ValueError, re.error) as error:
            # That nothing is no such time is right; all else is wrong with the pattern.
            if not str(error).startswith("time data"):
                raise wrong(f"expected a pattern that strptime takes; {error}") from None
    return value


class Timed(Model):
    """What sources of recorded events share."""

    time: FieldPath | None = Field(
        None, description="Field that holds an event's time (dots for nesting: `meta.dt`); null: it has none."
    )
    time_format: Annotated[str, AfterValidator(_time_format)] = Field(
        "iso8601",
        description="How `time` is written: `iso8601`, `unix_s`, `unix_ms`, `unix_us` (numbers since 1970), "
        "or a pattern of Python's `strptime` such as `%d/%m/%Y %H:%M`. A time without a zone is UTC.",
    )
    limit: PositiveInt | None = Field(None, description="End after so many records; null: no limit.")
    max_record_bytes: PositiveInt = Field(
        1_048_576, le=16_777_216, description="A longer record becomes a dead letter."
    )

    def event_time(self) -> EventTime | None:
        """How events get their time; None where they have none."""
        return EventTime(self.time, self.time_format) if self.time is not None else None
