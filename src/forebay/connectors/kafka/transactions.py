"""Commit Kafka transactions that another process has begun and can no longer end."""

from __future__ import annotations

from contextlib import suppress

from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.java_gateway import get_gateway

from forebay.connectors.kafka.admin import (
    START_TIMEOUT_S,
    KafkaAway,
    Transaction,
    class_names,
    client_properties,
)
from forebay.connectors.kafka.cluster import SHADED, KafkaCluster

SERIALIZER = f"{SHADED}.common.serialization.ByteArraySerializer"
ENDED = frozenset(("ProducerFencedException", "InvalidProducerEpochException", "InvalidTxnStateException"))
"""The transaction has ended, or another producer has taken its id."""


def commit(
    cluster: KafkaCluster, id: str, transaction: Transaction, timeout_s: float = START_TIMEOUT_S
) -> bool:
    """Blocks. Returns False if the transaction has ended meanwhile.

    Raises `KafkaAway` if Kafka does not answer within `timeout_s`; it may still be committed then.
    """
    properties = client_properties(cluster, timeout_s)
    for name in ("key.serializer", "value.serializer"):
        properties.put(name, SERIALIZER)
    properties.put("max.block.ms", str(round(timeout_s * 1000)))
    internal = get_gateway().jvm.org.apache.flink.connector.kafka.sink.internal
    producer = internal.FlinkKafkaInternalProducer(properties, id)
    try:
        producer.resumeTransaction(transaction.producer_id, transaction.epoch)
        producer.commitTransaction()
    except Py4JJavaError as error:
        if ENDED & set(class_names(error.java_exception)):
            return False
        raise KafkaAway(
            f"Kafka at {cluster.bootstrap} did not commit transaction {id}: "
            f"{error.java_exception.getMessage()}"
        ) from None
    finally:
        with suppress(Py4JError, OSError):
            producer.close()
    return True
