"""A Kafka of one node per session, from a distribution that FOREBAY_KAFKA_HOME names or that lies near."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.connectors.jars import KAFKA, install_jar
from forebay.settings import load_settings

NEAR = Path(__file__).parents[3].parent / "shared" / "kafka"


@pytest.fixture(scope="session")
def kafka_home() -> Path:
    home = Path(os.environ.get("FOREBAY_KAFKA_HOME", NEAR))
    if not home.is_dir():
        pytest.skip(f"no Kafka distribution: FOREBAY_KAFKA_HOME is not set and {home} is missing")
    return home


@pytest.fixture(scope="session")
def kafka_jar() -> Path:
    settings = load_settings()
    origin = settings.connectors_from or str(NEAR / "connector")
    if settings.connectors_from is None and not Path(origin).is_dir():
        pytest.skip(f"no connector: FOREBAY_CONNECTORS_FROM is not set and {origin} is missing")
    return install_jar(KAFKA, settings.connectors, origin)


@pytest.fixture(scope="session")
def node(kafka_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A node that all tests share; one that kills it must start it again."""
    from forebay.testing.kafka import local_kafka

    with local_kafka(kafka_home, tmp_path_factory.mktemp("kafka")) as node:
        yield node


@pytest.fixture
def topic(node: Any) -> Callable[..., str]:
    """Makes a topic with a name of its own."""
    from confluent_kafka.admin import AdminClient, NewTopic

    def make(partitions: int = 1, **config: str) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
        return name

    return make
