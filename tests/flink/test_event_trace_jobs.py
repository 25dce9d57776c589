"""Traces of jobs that are killed, and whose collector is away."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.flink.test_inference import Make, assert_exact, events
from tests.harness.otlp import collecting

from forebay.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

REQUEST, RESTORED = "forebay.request_id", "forebay.restored"


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def roots(spans: Iterable[Any]) -> list[Any]:
    return [span for span in spans if span.name == "event"]


def ids(spans: Iterable[Any], *, restored: bool) -> Counter[str]:
    """How many traces each request has, of those that began before or after a restore."""
    found = map(attributes, roots(spans))
    return Counter(each[REQUEST] for each in found if each[RESTORED] is restored)


@pytest.mark.flink
@pytest.mark.slow
def test_killed_job_has_one_trace_per_event_and_start(
    make_runs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.harness.operators import kill_tree

    runs = make_runs(opentelemetry="killed")
    runs.feed([*events(0, 20), *events(20, 24, hold="a"), *events(24, 28, hold="b")])
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        process = runs.spawn()
        wait_until(lambda: len(runs.results()) == 20 == len(roots(collector.spans)))
        runs.await_checkpoint_files()
        kill_tree(process)
        first = list(collector.spans)
        runs.release("a")
        process = runs.spawn(restore=True)
        wait_until(lambda: len(runs.results()) == 24 == len(roots(collector.spans)))
        second = collector.spans[len(first) :]
    # The collector is away now.
    runs.release("b")
    assert process.wait() == 0
    assert_exact(runs, 28)
    results = {result["fields"]["n"]: result["id"] for result in runs.results()}
    assert ids(first, restored=False) == Counter(results[n] for n in range(20))
    assert ids(second, restored=True) == Counter(results[n] for n in range(20, 24))
    assert ids(first, restored=True) == ids(second, restored=False) == Counter()
    traces = [span.trace_id for span in roots([*first, *second])]
    assert len(set(traces)) == len(traces) == 24
