"""Costs and budgets on a real Flink."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from forebay.engine.prices import TokenPrices, to_pico
from forebay.fleet.discovery import FixedReplicas
from forebay.pipeline.inference import NO_ENGINE, call_of
from forebay.records import Event, KeyedEvent, Usage
from forebay.testing.replica import ReplicaScript, ReplicaThread

pytestmark = pytest.mark.flink

# Of prompts low: a call in flight counts a token for each byte of its request.
PRICES = {"prompt": 0.003, "cached": 0.002, "completion": 0.6}
CAPACITY, COUNT = 2, 90


class OnlyFirst:
    """Answers the first events, and no other."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, request_id: str) -> float:
        return 0.01 if int(request_id.rpartition("@")[2]) <= self._count else 600.0


def costs(lines: list[dict[str, Any]]) -> Counter[str]:
    by_key = Counter[str]()
    for line in lines:
        by_key[line["key"]] += to_pico(line.get("cost", 0))
    return by_key


def test_costs_are_exact_and_a_ceiling_holds_through_a_kill(pipelines: Any) -> None:
    events = [{"user": "bob" if n % 6 == 0 else "ann", "text": f"event {n}"} for n in range(COUNT)]
    events[60]["text"] = "((fault:empty))"
    pipelines.write(*events)

    def spec(**costs_of: Any) -> Any:
        return pipelines.spec(
            key="{{ user }}",
            prompt="{{ text }}",
            sampling={"max_tokens": 8},
            capacity=CAPACITY,
            parallelism=2,
            retry={"base_s": 0.01, "max_invalid_answers": 2},
            **costs_of,
        )

    call = call_of(spec(prices={"*": PRICES}), replicas=FixedReplicas((NO_ENGINE,)), model="m")
    most = call.most_pico(KeyedEvent("", "ann", Event(b"", {"text": "event 89"}), 0))
    ceiling = 15 * most
    with ReplicaThread(ReplicaScript(delay=OnlyFirst(4))) as replica:
        pipelines.interrupt(spec(), replica.url, lambda: len(pipelines.lines()) == 4)
    limited = spec(prices={"*": PRICES}, budget={"per_key_per_day": ceiling / 10**12})
    with ReplicaThread(ReplicaScript(delay=OnlyFirst(30))) as replica:
        pipelines.interrupt(limited, replica.url, lambda: len(pipelines.lines()) == 30)
    before = costs(pipelines.lines())
    assert before["ann"] > ceiling / 2
    with ReplicaThread(ReplicaScript(delay=OnlyFirst(COUNT))) as replica:
        last = pipelines.run(limited, replica.url)
    results, letters = pipelines.lines(), pipelines.lines("out-dead-letters")
    positions = Counter(line["position"] for line in (*results, *letters))
    assert positions == Counter(f"in.jsonl@{n + 1}" for n in range(COUNT))
    prices = TokenPrices(3_000, 2_000, 600_000)
    priced = [line for line in results if "cost" in line]
    assert len(priced) < len(results)
    for line in priced:
        assert to_pico(line["cost"]) == prices.cost_pico(Usage(**line["usage"])) > 0
    (empty,) = (letter for letter in letters if letter["cause"] != "budget")
    assert (empty["cause"], empty["attempts"]) == ("empty_answer", 2)
    assert to_pico(empty["cost"]) > 0
    spent = costs(results) + costs(letters)
    assert {letter["key"] for letter in letters if letter["cause"] == "budget"} == {"ann"}
    assert ceiling - most < spent["ann"] <= ceiling
    assert last.failed["budget"] == sum(letter["cause"] == "budget" for letter in letters)
    assert (last.cost_pico, last.cost_by_key) == ((spent - before).total(), spent - before)
