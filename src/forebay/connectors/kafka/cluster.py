"""Connection settings of Kafka, where a job starts in its topics, and the table of raw records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.errors import SettingError
from forebay.settings import SecretRef

if TYPE_CHECKING:
    from pyflink.table import Schema, TableDescriptor

SHADED = "org.apache.flink.kafka.shaded.org.apache.kafka"
PROVIDERS = {
    "env": f"{SHADED}.common.config.provider.EnvVarConfigProvider",
    "directory": f"{SHADED}.common.config.provider.DirectoryConfigProvider",
}

KEY = "record_key"
VALUE = "value"
HEADERS = "headers"


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """Kafka's client reads `secrets` when it connects: they are in no job, state or log."""

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, SecretRef] = field(default_factory=dict)

    def client_properties(self) -> dict[str, str]:
        """Secrets are references that the client resolves."""
        found = {"bootstrap.servers": self.bootstrap, **self.properties}
        if self.secrets:
            found |= {name: _reference(ref) for name, ref in self.secrets.items()}
            found["config.providers"] = ",".join(PROVIDERS)
            found |= {f"config.providers.{name}.class": cls for name, cls in PROVIDERS.items()}
        return found

    def options(self) -> dict[str, str]:
        return {
            **{f"properties.{name}": value for name, value in self.client_properties().items()},
            "key.format": "raw",
            "key.fields": KEY,
            "value.format": "raw",
            "value.fields-include": "EXCEPT_KEY",
        }


def _reference(ref: SecretRef) -> str:
    if ref.env is not None:
        return f"${{env:{ref.env}}}"
    if ref.file is None:
        raise SettingError("a secret needs the name of an environment variable or of a file")
    path = Path(ref.file).absolute()
    return f"${{directory:{path.parent}:{path.name}}}"


def raw_columns() -> Schema.Builder:
    """Only one of several headers of the same name is kept."""
    from pyflink.table import DataTypes, Schema

    headers = DataTypes.MAP(DataTypes.STRING(), DataTypes.BYTES())
    return (
        Schema.new_builder()
        .column(KEY, DataTypes.BYTES())
        .column(VALUE, DataTypes.BYTES())
        .column_by_metadata(HEADERS, headers, "headers")
    )


def raw_table(schema: Schema, options: Mapping[str, str]) -> TableDescriptor:
    from pyflink.table import TableDescriptor

    builder = TableDescriptor.for_connector("kafka").schema(schema)
    for key, value in options.items():
        builder.option(key, value)
    return builder.build()


Generations = Mapping[str, tuple[str, ...]]
"""Ids by topic, oldest first."""


def marked(topic: str, generations: Generations) -> str:
    """In positions: `tickets~2` for the second topic of that name. Topic names contain no `~`."""
    generation = len(generations.get(topic, ()))
    return topic if generation < 2 else f"{topic}~{generation}"


@dataclass(frozen=True, slots=True)
class TopicStart:
    """`uid`: of Flink's source; with another, a restored job starts at the committed offsets.

    `watched`: a supervisor restarts the job if a reader loses its position.
    """

    uid: str | None = "kafka"
    generations: Generations = field(default_factory=dict)
    watched: bool = True


AS_FIRST = TopicStart()
