"""The application `summary`: settings and the stateful program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from forebay.apps.base import ApplicationSettings, Page, Preset
from forebay.apps.summaries.intake import Arrival
from forebay.apps.summaries.plan import DAY_MS, MIN_CHUNK_TOKENS, SummaryPlan, Windows
from forebay.apps.summaries.program import Output as Outcome
from forebay.apps.summaries.program import SummaryProgram
from forebay.apps.summaries.prompt import largest_call_tokens
from forebay.apps.summaries.state import KeyState
from forebay.apps.summaries.values import Refused, Summary
from forebay.engine.replica import ContextNeed
from forebay.errors import SettingError
from forebay.fields import AnyInt, FieldPath, NotNegativeFloat, PositiveFloat, PositiveInt, wrong
from forebay.json_numbers import dump_json
from forebay.records import JSON, Event, Sampling
from forebay.stateful.program import Answer, Ask, Failure, Moment, Output, Program, Step, Timer
from forebay.untrusted_text import counted

if TYPE_CHECKING:
    from pyflink.datastream import DataStream

    from forebay.apps.graph import InferenceOptions
    from forebay.flink.infer import InferenceStreams

WAKE = "wake"
LATEST_MS = 2**62
IDLE = "idle"
MAX_STATE_BYTES = 4 << 20
MAX_CHAIN = 32
"""Calls in a row before the key's other events are processed."""
WHY: Mapping[str, str] = {
    "late": "the event's window has closed",
    "future": "the event's time is too far ahead of the clock",
    "no_time": "the event has no time",
    "too_many_windows": "too many windows are open under the event's key",
}


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


class SummaryOfKey(Program[KeyState]):
    def __init__(self, settings: SummarySpec) -> None:
        self._settings = settings
        settings.plan()

    @cached_property
    def _program(self) -> SummaryProgram:
        return SummaryProgram(self._settings.plan())

    def initial(self, key: str) -> KeyState:
        return KeyState()

    def on_event(self, state: KeyState, event: Event, now: Moment) -> Step[KeyState]:
        arrival = Arrival(now.id, event.time_ms, self._message_of(event.fields))
        outputs = self._program.on_event(now.key, state, arrival, now.watermark_ms, now.wall_ms)
        return self._step(state, outputs, now)

    def on_answer(self, state: KeyState, tag: str, answer: Answer, now: Moment) -> Step[KeyState]:
        state.chained += 1
        return self._step(state, self._program.on_answer(now.key, state, answer.value, answer.usage), now)

    def on_failure(self, state: KeyState, tag: str, failure: Failure, now: Moment) -> Step[KeyState]:
        state.chained += 1
        return self._step(state, self._program.on_failure(now.key, state, failure), now)

    def on_timer(self, state: KeyState, name: str, time_ms: int, now: Moment) -> Step[KeyState]:
        if name == IDLE:
            over_ms = self._program.over_ms(state)
            # An earlier run may have set the timer, with an `idle_s`.
            if over_ms is None or self._settings.idle_s is None:
                return self._step(state, (), now)
            to_ms = over_ms
        else:
            to_ms = max(time_ms, now.watermark_ms or time_ms)
        return self._step(state, self._program.on_watermark(now.key, state, to_ms), now)

    def save(self, state: KeyState) -> JSON:
        return state.to_bytes()

    def load(self, version: int, saved: JSON) -> KeyState:
        return KeyState.from_bytes(saved)

    def _step(self, state: KeyState, outcomes: Sequence[Outcome], now: Moment) -> Step[KeyState]:
        refused = next((each for each in outcomes if isinstance(each, Refused)), None)
        letter = None if refused is None else Failure(refused.cause, WHY[refused.cause])
        outputs = tuple(_output(each) for each in outcomes if isinstance(each, Summary))
        closed_ms = state.watermark_ms
        if state.idle:
            passed_ms = now.watermark_ms
            if closed_ms is None or (passed_ms is not None and closed_ms <= passed_ms):
                return Step(None, outputs=outputs, letter=letter)
            # Idle time closed windows that the stream has not passed; their later events are late.
            timers = {WAKE: Timer(closed_ms), IDLE: None}
            return Step(state, None, outputs, timers, letter)
        ask = self._program.ask(now.key, state)
        wake_ms = self._program.wake_ms(state)
        if ask is None or state.chained >= MAX_CHAIN:
            if ask is not None:
                # The call is made when a timer fires that is already due.
                wake_ms = min(closed_ms or 0, LATEST_MS)
            state.chained, ask = 0, None
        timers = {WAKE: None if wake_ms is None else Timer(wake_ms)}
        if self._settings.idle_s is not None:
            open = self._program.over_ms(state) is not None
            timers[IDLE] = Timer(now.wall_ms + _ms(self._settings.idle_s), "wall") if open else None
        call = None
        if ask is not None:
            sampling = Sampling(max_tokens=ask.max_tokens)
            call = Ask(ask.messages(), ask.id, ask.schema(), sampling)
        return Step(state, call, outputs, timers, letter)

    def _message_of(self, fields: Mapping[str, JSON]) -> str:
        text = _field(fields, self._settings.text)
        if self._settings.author is None:
            return text
        author = _field(fields, self._settings.author)
        return f"{author}: {text}" if author else text


def _output(summary: Summary) -> Output:
    return Output(summary.to_json(), fields={}, time_ms=summary.end_ms - 1)


def _field(fields: Mapping[str, JSON], path: str) -> str:
    value: Any = fields
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None or isinstance(value, str):
        return value or ""
    return dump_json(value).decode()


class SummarySpec(ApplicationSettings):
    """Summaries per key and window. Needs `event_time`."""

    needs_key: ClassVar[bool] = True
    needs_event_time: ClassVar[bool] = True
    preset: ClassVar[Preset] = Preset({"key": "{{ channel }}", "event_time": {}, "timeout_s": 120.0})

    type: Literal["summary"] = "summary"
    text: FieldPath = Field("text", description="Field with the text; dots for nesting.")
    author: FieldPath | None = Field(
        None, description="Field with the author's name; null: authors are not named."
    )
    window: Literal["tumbling", "sliding", "session", "rolling"] = Field(
        "tumbling",
        description="`tumbling`: one after another; `sliding`: overlapping; `session`: until a pause; "
        "`rolling`: one running summary, emitted after each chunk.",
    )
    size_s: PositiveFloat = Field(3600.0, description="Length of tumbling and sliding windows.")
    step_s: PositiveFloat = Field(
        900.0, description="Time from one sliding window to the next; must divide `size_s`."
    )
    gap_s: PositiveFloat = Field(1800.0, description="Pause that ends a session.")
    every_s: PositiveFloat = Field(
        300.0, description="Maximum time from an event to a rolling summary that includes it."
    )
    late: Literal["next", "side", "correct"] = Field(
        "next",
        description="What happens to an event whose window has closed: `next`: it goes into the open window; "
        "`side`: to the dead letters; `correct`: the window's summary is emitted again with it.",
    )
    allowed_s: NotNegativeFloat = Field(
        3600.0, description="How long a closed window can still be corrected."
    )
    correct_s: NotNegativeFloat = Field(
        60.0, description="Time from a late event to the correction, in event time."
    )
    work_tokens: PositiveInt = Field(
        100_000,
        description="Token budget of all calls for one key and window; beyond it, events are sampled.",
    )
    summary_tokens: PositiveInt = Field(400, description="Maximum length of a summary, in tokens.")
    chunk_tokens: PositiveInt = Field(2400, description="Tokens of events in one call.")
    partial_tokens: PositiveInt = Field(200, description="Maximum length of a partial summary, in tokens.")
    fan_in: PositiveInt = Field(4, description="How many partial summaries are merged in one call.")
    lead_s: NotNegativeFloat = Field(
        60.0,
        description="Start summarising this long before the window closes; at least the time of one call.",
    )
    ahead_s: NotNegativeFloat = Field(
        DAY_MS / 1000, description="An event further ahead of the stream's clock becomes a dead letter."
    )
    idle_s: PositiveFloat | None = Field(
        None,
        description="Close a key's windows after this much wall-clock time without an event, even if event "
        "time stands still; null: wait.",
    )
    seed: AnyInt = Field(0, description="Seed of the sample.")

    @model_validator(mode="after")
    def _fits_together(self) -> SummarySpec:
        try:
            self.plan()
        except SettingError as error:
            raise wrong(f"expected settings that agree; {error}") from None
        return self

    @property
    def text_field(self) -> str:
        return self.text

    def fingerprint(self) -> dict[str, Any]:
        """What decides where windows begin and end, and which are kept for corrections."""
        shaping = {"tumbling": ("size_s",), "sliding": ("size_s", "step_s"), "session": ("gap_s",)}
        names = [*shaping.get(self.window, ()), *(["allowed_s"] if self.late == "correct" else [])]
        late = self.late if self.late == "correct" else "next or side"
        return {"window": self.window, **{name: getattr(self, name) for name in names}, "late": late}

    @property
    def max_state_bytes(self) -> int:
        return MAX_STATE_BYTES

    def plan(self) -> SummaryPlan:
        """Raises `SettingError` if settings contradict each other."""
        return SummaryPlan(
            self._windows(),
            late=self.late,
            allowed_ms=_ms(self.allowed_s),
            correct_ms=_ms(self.correct_s),
            work_tokens=self.work_tokens,
            summary_tokens=self.summary_tokens,
            chunk_tokens=self.chunk_tokens,
            partial_tokens=self.partial_tokens,
            fan_in=self.fan_in,
            lead_ms=_ms(self.lead_s),
            ahead_ms=_ms(self.ahead_s),
            seed=self.seed,
        )

    def context_need(self, max_tokens: int) -> ContextNeed:
        return ContextNeed(
            largest_call_tokens(self.plan()),
            "application.chunk_tokens",
            "the largest call of a summary",
            self.chunk_tokens,
            MIN_CHUNK_TOKENS,
        )

    def program(self, *, event_time: bool) -> SummaryOfKey:
        """Raises `SettingError` without event time."""
        if not event_time:
            raise SettingError("summaries need event time: set event_time and name the field with the time")
        return SummaryOfKey(self)

    def _windows(self) -> Windows:
        kind: Literal["tumbling", "sliding", "session", "rolling"] = self.window
        if kind == "sliding":
            return Windows.sliding(_ms(self.size_s), _ms(self.step_s))
        if kind == "session":
            return Windows.session(_ms(self.gap_s), max(DAY_MS, _ms(self.gap_s)))
        if kind == "rolling":
            return Windows.rolling(_ms(self.every_s))
        return Windows.tumbling(_ms(self.size_s))

    def build(self, records: DataStream, options: InferenceOptions) -> InferenceStreams:
        from forebay.apps.graph import stateful

        return stateful(self, records, options)

    def finding(self, answer: Any) -> str:
        if answer["text"] is None:
            return "failed_summary"
        return "correction" if answer["revision"] and answer["window"]["kind"] != "rolling" else "summary"

    def news(self, answer: Any) -> str | None:
        if answer["type"] != "summary":
            return None
        window, summary = answer["window"], answer["text"]
        text = summary if summary is not None else f"could not be summarised: {answer['failure']}"
        of_key = f"{answer['key']}, " if answer["key"] else ""
        lost = answer["left_out"] + (answer["failed"] if summary is not None else 0)
        note = f" (without {lost:,} of {counted(answer['events'], 'event')})" if lost else ""
        return f"summary {of_key}{window['start']} to {window['end']}{note}: {text}"

    def top(self, lines: Iterable[bytes]) -> list[str]:
        from forebay.apps.summaries.page import top_summaries

        return top_summaries(lines)

    def page(self) -> Page | None:
        from forebay.apps.summaries.page import summaries_page

        return summaries_page
