"""Replicas that a run owns, without processes, and a Kafka that requires passwords and certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.engine.launch import LocalReplica
from forebay.errors import LaunchError

from .authority import MODULE, PASSWORD, Authority


class FakeReplica(LocalReplica):
    dead: bool = False

    @property
    def alive(self) -> bool:
        return not self.dead


class FakeOwned(tuple[str, ...]):
    """The URLs of replicas that die on command; `broken` ones cannot be restarted."""

    replicas: list[LocalReplica]
    restarted: list[int]
    broken: bool

    def __new__(cls, count: int = 1) -> FakeOwned:
        owned = super().__new__(cls, (f"http://r:{i}" for i in range(count)))
        owned.replicas = [cls._new(i) for i in range(count)]
        owned.restarted = []
        owned.broken = False
        return owned

    def die(self, index: int = 0) -> None:
        self.replicas[index] = self.replicas[index].model_copy(update={"dead": True})

    def restart(self, index: int) -> None:
        if self.broken:
            raise LaunchError("no memory")
        self.restarted.append(index)
        self.replicas[index] = self._new(index)

    @staticmethod
    def _new(index: int) -> FakeReplica:
        return FakeReplica(
            id=str(index), url=f"http://r:{index}", port=1, model="m", log=Path("the.log"), pid=1, born_s=0.0,
            owner_pid=1,
        )  # fmt: skip


@pytest.fixture
def make_owned() -> type[FakeOwned]:
    return FakeOwned


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def secured(
    kafka_home: Path, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A node that also listens with a password and with mutual TLS."""
    from forebay.testing.kafka import local_kafka

    key, certificate = authority.issue("broker")
    store = authority.folder / "broker-store.pem"
    store.write_bytes(key.read_bytes() + certificate.read_bytes())
    tls = "listener.name.ssl.ssl"
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{MODULE} required user_ann="{PASSWORD}" '
        f'user_bob="{PASSWORD}";',
        # Who has no rights, as bob, sees no topics.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:ann;User:CN=ann",
        f"{tls}.keystore.type": "PEM",
        f"{tls}.keystore.location": str(store),
        f"{tls}.truststore.type": "PEM",
        f"{tls}.truststore.location": str(authority.ca),
        f"{tls}.client.auth": "required",
    }
    folder = tmp_path_factory.mktemp("secured")
    with local_kafka(kafka_home, folder, settings, ("SASL_PLAINTEXT", "SSL")) as node:
        yield node
