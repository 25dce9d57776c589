"""Settings of the post generator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, Strict

from forebay.connectors.base import Connector, PipelineView, SourceSettings
from forebay.fields import AnyInt, Model, NotNegativeFloat, PositiveFloat, PositiveInt, Switch

if TYPE_CHECKING:
    from pyflink.datastream import DataStream, StreamExecutionEnvironment

    from forebay.connectors.generator.source import Generator


class BurstSpec(Model):
    """A stretch of the generated stream with a higher rate and a common topic."""

    start_s: NotNegativeFloat = Field(description="Start, in seconds of event time after the first event.")
    duration_s: PositiveFloat = Field(description="Length in seconds of event time.")
    factor: PositiveFloat = Field(4.0, description="Rate during the burst as a multiple of `rate`.")
    topic: Literal["outage", "weather", "football", "transit", "food", "music", "school", "pets"] = Field(
        "outage", description="Topic of the burst's posts."
    )
    share: Annotated[float, Strict(), Field(ge=0, le=1)] = Field(
        0.8, description="Share of the burst's posts that are about the topic."
    )


class GeneratorSource(SourceSettings):
    """Made-up posts of a social network: same seed, same posts."""

    bound: ClassVar[frozenset[str] | None] = frozenset(("seed", "rate", "count", "burst", "paced"))

    type: Literal["generator"]
    seed: AnyInt = Field(1, description="Seed of the random numbers.")
    rate: PositiveFloat = Field(20.0, le=1_000_000, description="Events per second of event time.")
    count: PositiveInt | None = Field(None, description="How many events; null: without end.")
    burst: BurstSpec | None = Field(None, description="A burst planted in the stream.")
    paced: Switch = Field(
        True,
        description="true: each event at its time, `rate` a second; false: as fast as the engine takes it.",
    )

    def generator(self) -> Generator:
        from forebay.connectors.generator.source import Burst, Generator

        bursts = () if self.burst is None else (Burst(**dict(self.burst)),)
        return Generator(self.count, self.rate, bursts, self.seed, paced=self.paced)

    def stream(self, env: StreamExecutionEnvironment, pipeline: PipelineView) -> DataStream:
        from forebay.connectors.generator.source import generator_source

        return generator_source(env, self.generator())


GENERATOR = Connector(GeneratorSource)
