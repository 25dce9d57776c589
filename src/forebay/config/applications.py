"""The applications `trends` and `topics` as a pipeline file names them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator

from forebay.apps.sessions.program import SYSTEM, Sessions
from forebay.apps.summaries.settings import Summaries
from forebay.apps.topics.settings import Embeddings, Topics
from forebay.apps.topics.values import TopicSettings
from forebay.apps.trends.settings import Trends
from forebay.apps.trends.values import TrendSettings
from forebay.config.fields import (
    AnyInt,
    FieldPath,
    Model,
    NotNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Switch,
    wrong,
)
from forebay.errors import SettingError
from forebay.flink.shards import MAX_PARALLELISM

TRENDS, FIND = Trends(), TrendSettings()


class TrendsSpec(Model):
    """What is going viral, and why. Needs a source with times."""

    type: Literal["trends"]
    text: FieldPath = Field(TRENDS.text, description="The field with the post, dots for nesting.")
    late_s: NotNegativeFloat = Field(
        TRENDS.late_s, description="A post farther behind the stream's clock becomes a dead letter (`late`)."
    )
    ahead_s: NotNegativeFloat = Field(
        TRENDS.ahead_s, description="A post farther ahead of its partition becomes a dead letter (`ahead`)."
    )
    labels: Switch = Field(TRENDS.labels, description="Whether the model is asked why.")
    least_nats: PositiveFloat = Field(FIND.least_nats, description="Least evidence that makes a trend.")
    least_ratio: Annotated[float, Strict(), Field(ge=1)] = Field(
        FIND.least_ratio, description="Least ratio of a term's share of the posts to what it was."
    )
    least_posts: PositiveFloat = Field(
        FIND.least_posts, description="Least posts with a term, old ones weighing less."
    )

    def settings(self) -> Trends:
        find = TrendSettings(
            least_nats=self.least_nats, least_ratio=self.least_ratio, least_posts=self.least_posts
        )
        return Trends(self.text, self.late_s, self.ahead_s, self.labels, find)


TOPICS, CLUSTERS = Topics(), TopicSettings()


class TopicsSpec(Model):
    """Which topics emerge, and what they are about."""

    type: Literal["topics"]
    text: FieldPath = Field(TOPICS.text, description="The field with the text, dots for nesting.")
    embeddings: Embeddings = Field(
        TOPICS.embeddings,
        description="`minilm`: the model of `forebay setup --embeddings`; `words`: no model, texts are alike "
        "by their words.",
    )
    threads: PositiveInt = Field(TOPICS.threads, description="Threads of the embedding.")
    wait_s: PositiveFloat = Field(
        TOPICS.wait_s, description="Longest wait of a text until its batch of 64 is full."
    )
    topic_shards: PositiveInt = Field(
        TOPICS.topic_shards,
        le=MAX_PARALLELISM,
        description="Parts of the stream that have topics of their own, by the hash of `key`; they run side "
        "by side.",
    )
    labels: Switch = Field(TOPICS.labels, description="Whether the model is asked for labels.")
    birth_texts: PositiveInt = Field(CLUSTERS.birth_texts, description="Texts that make a topic.")
    idle_s: PositiveFloat = Field(CLUSTERS.idle_s, description="A topic without a text for so long dies.")

    def settings(self) -> Topics:
        find = TopicSettings(birth_texts=self.birth_texts, idle_s=self.idle_s)
        return Topics(
            self.text, self.embeddings, self.threads, self.wait_s, self.topic_shards, self.labels, find
        )


SESSIONS = Sessions()
SUMMARIES = Summaries()


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


class SummarySpec(Model):
    """Summaries of what is said under each key, window by window. Needs `event_time`."""

    type: Literal["summary"]
    text: FieldPath = Field("text", description="The field with what is said, dots for nesting.")
    author: FieldPath | None = Field(None, description="The field with who says it; null: nobody is named.")
    window: Literal["tumbling", "sliding", "session", "rolling"] = Field(
        "tumbling",
        description="`tumbling`: one after another; `sliding`: overlapping; `session`: until a silence; "
        "`rolling`: one summary that goes on, given after each chunk.",
    )
    size_s: PositiveFloat = Field(SUMMARIES.size_s, description="Length of tumbling and sliding windows.")
    step_s: PositiveFloat = Field(
        SUMMARIES.step_s, description="From one sliding window to the next; a whole part of `size_s`."
    )
    gap_s: PositiveFloat = Field(SUMMARIES.gap_s, description="The silence that ends a session.")
    every_s: PositiveFloat = Field(
        SUMMARIES.every_s, description="The longest time from an event to a rolling summary that knows it."
    )
    late: Literal["next", "side", "correct"] = Field(
        "next",
        description="An event whose window has closed: `next`: goes into the window that is open; `side`: to "
        "the dead letters; `correct`: the window's summary is given once more, with it.",
    )
    allowed_s: NotNegativeFloat = Field(
        SUMMARIES.allowed_s, description="How long a window can be corrected after its close."
    )
    correct_s: NotNegativeFloat = Field(
        SUMMARIES.correct_s, description="From a late event to the correction, in event time."
    )
    work_tokens: PositiveInt = Field(
        SUMMARIES.work_tokens, description="All calls for a key and window; past it events are sampled."
    )
    summary_tokens: PositiveInt = Field(SUMMARIES.summary_tokens, description="The longest summary.")
    chunk_tokens: PositiveInt = Field(SUMMARIES.chunk_tokens, description="Events of one call.")
    partial_tokens: PositiveInt = Field(
        SUMMARIES.partial_tokens, description="The longest summary of a chunk, or of several."
    )
    fan_in: PositiveInt = Field(SUMMARIES.fan_in, description="How many of those are merged into one.")
    lead_s: NotNegativeFloat = Field(
        SUMMARIES.lead_s,
        description="So long before a window's end its events so far are summarised: a call's time, or more.",
    )
    ahead_s: NotNegativeFloat = Field(
        SUMMARIES.ahead_s, description="An event further ahead of the clock goes to the dead letters."
    )
    idle_s: PositiveFloat | None = Field(
        None,
        description="So long after a key's last event, on the clock, its windows close though event time "
        "stands still; null: they wait.",
    )
    seed: AnyInt = Field(0, description="Of the sample.")

    @model_validator(mode="after")
    def _fits_together(self) -> SummarySpec:
        try:
            self.settings().plan()
        except SettingError as error:
            raise wrong(f"expected settings that agree; {error}") from None
        return self

    def settings(self) -> Summaries:
        return Summaries(**{name: value for name, value in self if name != "type"})


Application = Annotated[SessionsSpec | SummarySpec | TopicsSpec | TrendsSpec, Field(discriminator="type")]
COUNTING = frozenset(("topics", "trends"))
"""Applications that ask about what they found, not about each event, and have a clock of their own."""
KEYED = frozenset(("sessions", "summary"))
"""Applications that keep something for each key, and so need one."""
TIMED = frozenset(("summary",))
"""Applications that need event time."""
