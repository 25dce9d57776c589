"""Reports of a real Kafka node, and errors without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.topic_client import delete_before, make_topic, produce

from forebay.connectors.kafka.admin import KafkaAway, KafkaRefused, Place, kafka_admin, lag
from forebay.connectors.kafka.clients import all_read
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.settings import SecretRef


def answers_of(bootstrap: str, topic: str, moment_ms: int) -> dict[str, Any]:
    """Answers of clients of a running node, of missing nodes and of ones that refuse."""
    answers: dict[str, Any] = {}
    with kafka_admin(KafkaCluster(bootstrap), timeout_s=120.0) as admin:
        answers["there"] = topic in admin.topics()
        answers["partitions"] = admin.partitions([topic, "no-such-topic"])
        ids = admin.topic_ids([topic, "no-such-topic"])
        answers["ids"] = (list(ids), ids == admin.topic_ids([topic]))
        cluster_id = admin.cluster_id()
        with kafka_admin(KafkaCluster(bootstrap.replace("127.0.0.1", "localhost")), timeout_s=120.0) as same:
            answers["same"] = same.cluster_id() == cluster_id != ""
        answers["longest"] = admin.longest_transaction_ms()
        answers["members"] = admin.members("no-such-group")
        answers["committed"] = list(admin.committed("no-such-group"))
        ends = admin.ends([topic])
        answers["ends"] = [place.offset for place in ends]
        answers["begins"] = [place.offset for place in admin.offsets([topic], "earliest")]
        answers["since"] = [place.offset for place in admin.offsets([topic], moment_ms)]
        group = f"{topic}-group"
        admin.commit(group, [Place(topic, 0, 2), Place(topic, 1, 3)])
        answers["placed"] = list(admin.committed(group))
        answers["read"] = {
            words: all_read(KafkaCluster(bootstrap), committed, ends, timeout_s=120.0)
            for words, committed in {
                "before the last record": [Place(topic, 0, 2), Place(topic, 1, 4)],
                "before the end of a transaction": [Place(topic, 0, 3), Place(topic, 1, 4)],
                "at the end": ends,
                "unknown": [Place(topic, 0, 4)],
            }.items()
        }
        answers["transactions"] = admin.transactions([f"{topic}-3000", f"{topic}-2", f"{topic}-none"])
        given_up = admin.ends([topic + "-given-up"])
        begin = [Place(topic + "-given-up", 0, 1)]
        for isolation in ("read_committed", "read_uncommitted"):
            answers["read"][isolation] = all_read(KafkaCluster(bootstrap), begin, given_up, isolation, 120.0)
        deleted = admin.ends([topic + "-deleted"])
        begin = [Place(topic + "-deleted", 0, 1)]
        answers["read"]["deleted"] = all_read(KafkaCluster(bootstrap), begin, deleted, timeout_s=120.0)
        away = KafkaCluster("127.0.0.1:9")
        answers["read"]["away"] = all_read(away, [Place(topic, 0, 3)], ends[:1], timeout_s=1.0)
    no_file = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/nowhere.pem",
    }
    for name, cluster in {
        "away": KafkaCluster("127.0.0.1:9"),
        "refused": KafkaCluster(bootstrap, {"security.protocol": "NONSENSE"}),
        "no host": KafkaCluster("kafka.invalid:9092", {}, {"sasl.jaas.config": SecretRef(env="NONE")}),
        "no file": KafkaCluster(bootstrap, no_file),
    }.items():
        with pytest.raises((KafkaAway, KafkaRefused)) as error, kafka_admin(cluster, timeout_s=2.0) as admin:
            admin.topics()
        answers[name] = f"{error.type.__name__}: {error.value}"
    return answers


@pytest.mark.flink
def test_topics_ends_and_limits_are_reported_and_missing_ones_named(
    node: Any, kafka_jar: Path, topic: Callable[..., str], flink_logs: Path
) -> None:
    name = topic(2)
    for moment_ms in (1_000, 2_000, 3_000):
        record = {"value": b"x", "partition": 0, "timestamp": moment_ms}
        produce(
            node.bootstrap, name, [record], transaction=f"{name}-{moment_ms}" if moment_ms == 3_000 else None
        )
    produce(node.bootstrap, name, [{"value": b"x", "partition": 1, "timestamp": 1_000}] * 4)
    for kind in ("given-up", "deleted"):
        make_topic(node.bootstrap, f"{name}-{kind}")
        produce(node.bootstrap, f"{name}-{kind}", [{"value": b"x"}] * (1 if kind == "given-up" else 4))
    produce(node.bootstrap, f"{name}-given-up", [{"value": b"x"}] * 2, transaction=f"{name}-2", commit=False)
    delete_before(node.bootstrap, f"{name}-deleted", 3)
    answers = answers_of(node.bootstrap, name, 2000)
    assert answers["there"] is True
    assert answers["partitions"] == {name: 2}
    assert answers["ids"] == ([name], True)
    assert answers["longest"] == 900_000
    assert answers["same"] is True
    assert answers["no host"].startswith("KafkaAway: Kafka at kafka.invalid:9092: no such host name")
    assert (answers["members"], answers["committed"]) == (0, [])
    transactions = answers["transactions"]
    assert {id: each.state for id, each in transactions.items()} == {
        f"{name}-3000": "CompleteCommit",
        f"{name}-2": "CompleteAbort",
    }
    # Also of one that is over.
    assert all((each.began_ms or 0) > 0 for each in transactions.values())
    # The end of a transaction takes an offset as well.
    assert (answers["begins"], answers["ends"], answers["since"]) == ([0, 0], [4, 4], [1, 4])
    assert answers["placed"] == [Place(name, 0, 2), Place(name, 1, 3)]
    assert answers["read"] == {
        "before the last record": False,
        "before the end of a transaction": True,
        "at the end": True,
        "unknown": False,
        "away": False,
        # A `read_committed` consumer will never return the aborted records.
        "read_committed": True,
        "read_uncommitted": False,
        # One record is left after those that retention has deleted.
        "deleted": False,
    }
    assert answers["away"].startswith("KafkaAway: Kafka at 127.0.0.1:9 does not answer")
    assert answers["refused"].startswith("KafkaRefused: ")
    assert "/nowhere.pem" in answers["no file"]
    assert "NONSENSE" in answers["refused"] or "security.protocol" in answers["refused"]


def test_lag_counts_records_after_the_committed_offsets() -> None:
    ends = [Place("a", 0, 10), Place("a", 1, 5), Place("b", 0, 7)]
    assert lag(ends, [Place("a", 0, 4), Place("b", 0, 9)]) == 6 + 5
    assert lag(ends, []) == 22
    assert lag([], ends) == 0
