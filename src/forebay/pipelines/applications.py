"""The applications as a pipeline file names them: one class per `type`, with its settings.

A new application is a class here, its name in `Application`, a pure module in `forebay.applications`, a line in
`forebay.pipelines.streams.BUILDERS`, and its defaults in `forebay.pipelines.ready`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from forebay.applications.sessions import SYSTEM, Sessions
from forebay.pipelines.fields import Model, PositiveFloat, PositiveInt

SESSIONS = Sessions()


class SessionsSpec(Model):
    """A conversation per key that remembers what was said."""

    type: Literal["sessions"]
    text: Annotated[str, Field(min_length=1, max_length=500)] = Field(
        "text", description="The field with what the user says, dots for nesting."
    )
    system: Annotated[str, Field(min_length=1)] = Field(SYSTEM, description="What the model is told first.")
    budget_tokens: PositiveInt = Field(
        SESSIONS.budget_tokens,
        description="Longest prompt, in tokens; beyond it old turns are folded.",
    )
    idle_s: PositiveFloat | None = Field(
        SESSIONS.idle_s,
        description="A session ends after so long without a turn: in event time where the pipeline has "
        "`event_time`, else on the clock. null: never.",
    )

    def settings(self) -> Sessions:
        return Sessions(**{name: value for name, value in self if name != "type"})


Application = SessionsSpec
