"""The applications `trends` and `topics` as a pipeline file names them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict

from forebay.applications.topics import Embeddings, Topics
from forebay.applications.trends import Trends
from forebay.detect.topic_values import TopicSettings
from forebay.detect.trend_values import TrendSettings
from forebay.operators.shards import MAX_PARALLELISM
from forebay.pipelines.fields import FieldPath, Model, NotNegativeFloat, PositiveFloat, PositiveInt, Switch

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
