"""Results that are too large for their topic."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.codec import encode
from forebay.connectors.base import ASSIGNMENTS, RESULTS
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.connectors.kafka.sink import REFUSED, CountedAs, OutputWriter, TopicSink, WriteOutput
from forebay.connectors.kafka.written import MIN_LIMIT_BYTES
from forebay.records import Result, Usage

LARGE = Result("1", "", {}, "x" * MIN_LIMIT_BYTES, Usage(), 1, 0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("what", "counts"),
    [
        (RESULTS, {"too_large_total": 1}),
        (ASSIGNMENTS, {"too_large_total": 1, "too_large_assignments_total": 1}),
    ],
)
def test_rejected_results_are_counted_by_sink(what: str, counts: dict[str, int]) -> None:
    found = Counter[str]()

    def counter(name: str) -> Any:
        return SimpleNamespace(inc=lambda: found.update([name]))

    group = SimpleNamespace(add_group=lambda _: SimpleNamespace(counter=counter))
    context: Any = SimpleNamespace(get_metrics_group=lambda: group)
    cluster = KafkaCluster("h:1", properties={"max.request.size": str(MIN_LIMIT_BYTES)})
    config = TopicSink(cluster, "t", "at-least-once")
    sink = WriteOutput(OutputWriter(MIN_LIMIT_BYTES), config, CountedAs(what, ""))
    sink.open(context)
    ((tag, _),) = sink.process_element(encode(LARGE), context)
    sink.close()
    assert (tag, found) == (REFUSED, counts)
