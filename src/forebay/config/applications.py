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
    text: FieldPath = Field(TRENDS.text, description="Field with the post's text; dots for nesting.")
    late_s: NotNegativeFloat = Field(
        TRENDS.late_s, description="A post further behind the stream's clock becomes a dead letter (`late`)."
    )
    ahead_s: NotNegativeFloat = Field(
        TRENDS.ahead_s,
        description="A post further ahead of its partition's clock becomes a dead letter (`ahead`).",
    )
    labels: Switch = Field(TRENDS.labels, description="Ask the model why each trend rises.")
    least_nats: PositiveFloat = Field(FIND.least_nats, description="Minimum evidence for a trend, in nats.")
    least_ratio: Annotated[float, Strict(), Field(ge=1)] = Field(
        FIND.least_ratio, description="Minimum ratio of a term's share of the posts to its earlier share."
    )
    least_posts: PositiveFloat = Field(
        FIND.least_posts, description="Minimum decayed number of posts with the term."
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
    text: FieldPath = Field(TOPICS.text, description="Field with the text; dots for nesting.")
    embeddings: Embeddings = Field(
        TOPICS.embeddings,
        description="`minilm`: the model of `forebay setup --embeddings`; `words`: no model, texts are alike "
        "by their words.",
    )
    threads: PositiveInt = Field(TOPICS.threads, description="Threads for the embedding model.")
    wait_s: PositiveFloat = Field(
        TOPICS.wait_s, description="Maximum time a text waits for its batch of 64 to fill."
    )
    topic_shards: PositiveInt = Field(
        TOPICS.topic_shards,
        le=MAX_PARALLELISM,
        description="Parts of the stream that have topics of their own, by the hash of `key`; they run side "
        "by side.",
    )
    labels: Switch = Field(TOPICS.labels, description="Ask the model for a label of each topic.")
    birth_texts: PositiveInt = Field(CLUSTERS.birth_texts, description="Minimum number of texts in a topic.")
    idle_s: PositiveFloat = Field(
        CLUSTERS.idle_s, description="End a topic after this long without a new text."
    )

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
        "text", description="Field with the user's text; dots for nesting."
    )
    system: Annotated[str, Field(min_length=1)] = Field(SYSTEM, description="System message.")
    budget_tokens: PositiveInt = Field(
        SESSIONS.budget_tokens,
        description="Maximum prompt length in tokens; older turns are summarised to stay below it.",
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
    text: FieldPath = Field("text", description="Field with the text; dots for nesting.")
    author: FieldPath | None = Field(
        None, description="Field with the author's name; null: authors are not named."
    )
    window: Literal["tumbling", "sliding", "session", "rolling"] = Field(
        "tumbling",
        description="`tumbling`: one after another; `sliding`: overlapping; `session`: until a silence; "
        "`rolling`: one summary that goes on, given after each chunk.",
    )
    size_s: PositiveFloat = Field(SUMMARIES.size_s, description="Length of tumbling and sliding windows.")
    step_s: PositiveFloat = Field(
        SUMMARIES.step_s, description="Time from one sliding window to the next; must divide `size_s`."
    )
    gap_s: PositiveFloat = Field(SUMMARIES.gap_s, description="Pause that ends a session.")
    every_s: PositiveFloat = Field(
        SUMMARIES.every_s, description="Maximum time from an event to a rolling summary that includes it."
    )
    late: Literal["next", "side", "correct"] = Field(
        "next",
        description="An event whose window has closed: `next`: goes into the window that is open; `side`: to "
        "the dead letters; `correct`: the window's summary is given once more, with it.",
    )
    allowed_s: NotNegativeFloat = Field(
        SUMMARIES.allowed_s, description="How long a closed window can still be corrected."
    )
    correct_s: NotNegativeFloat = Field(
        SUMMARIES.correct_s, description="Time from a late event to the correction, in event time."
    )
    work_tokens: PositiveInt = Field(
        SUMMARIES.work_tokens,
        description="Token budget of all calls for one key and window; beyond it, events are sampled.",
    )
    summary_tokens: PositiveInt = Field(
        SUMMARIES.summary_tokens, description="Maximum length of a summary, in tokens."
    )
    chunk_tokens: PositiveInt = Field(SUMMARIES.chunk_tokens, description="Tokens of events in one call.")
    partial_tokens: PositiveInt = Field(
        SUMMARIES.partial_tokens, description="Maximum length of a partial summary, in tokens."
    )
    fan_in: PositiveInt = Field(
        SUMMARIES.fan_in, description="How many partial summaries are merged in one call."
    )
    lead_s: NotNegativeFloat = Field(
        SUMMARIES.lead_s,
        description="Start summarising this long before the window closes; at least the time of one call.",
    )
    ahead_s: NotNegativeFloat = Field(
        SUMMARIES.ahead_s, description="An event further ahead of the stream's clock becomes a dead letter."
    )
    idle_s: PositiveFloat | None = Field(
        None,
        description="So long after a key's last event, on the clock, its windows close though event time "
        "stands still; null: they wait.",
    )
    seed: AnyInt = Field(0, description="Seed of the sample.")

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
