from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.fleet.admission import Admission, ImmediateDispatcher
from forebay.fleet.placement import ModelQueues
from forebay.fleet.policies import RoundRobin
from forebay.fleet.replica_table import ReplicaLimits, ReplicaTable
from forebay.fleet.routing_request import InFlightRequest, RoutingRequest


def queues_of(
    rows: Mapping[str, Sequence[int]], *, most: int = 1, replicas: int = 2
) -> tuple[ReplicaTable, ModelQueues[str]]:
    fleet = ReplicaTable([ReplicaLimits(str(number)) for number in range(replicas)])
    for number in range(replicas):
        fleet.set_room(number, most, most)
    return fleet, ModelQueues(fleet, lambda: Admission(fleet), lambda model: rows.get(model, ()))


def add(queues: ModelQueues[str], *names: str) -> None:
    for name in names:
        queues.add(name, RoutingRequest(100, model=name.split()[0]), 0.0)


def test_request_is_routed_to_a_replica_of_its_model() -> None:
    _, queues = queues_of({"a": [1], "b": [0]}, most=9)
    add(queues, "a 1", "a 2", "b 1")
    sent = queues.ready(0.0)
    assert {item: charge.replica for item, charge in sent} == {"a 1": 1, "a 2": 1, "b 1": 0}


def test_model_served_by_all_may_use_any_replica() -> None:
    fleet = ReplicaTable([ReplicaLimits(str(number)) for number in range(2)])
    queues = ModelQueues[str](fleet, lambda: ImmediateDispatcher(fleet, RoundRobin()), lambda model: None)
    add(queues, "a 1", "a 2")
    assert sorted(charge.replica for _, charge in queues.ready(0.0)) == [0, 1]


def test_full_replicas_of_one_model_do_not_block_another_model() -> None:
    _, queues = queues_of({"a": [0], "b": [1]})
    add(queues, *(f"a {number}" for number in range(100)), "b 1")
    assert sorted(item for item, _ in queues.ready(0.0)) == ["a 0", "b 1"]
    assert len(queues) == 99


def test_models_of_one_replica_alternate() -> None:
    fleet, queues = queues_of({"a": [0], "b": [0]}, replicas=1)
    add(queues, "a 1", "a 2", "a 3", "b 1", "b 2")
    order: list[str] = []
    running: list[InFlightRequest] = []
    for turn in range(5):
        for charge in running:
            fleet.first_token(charge, float(turn))
            fleet.finish(charge, float(turn))
        sent = queues.ready(float(turn))
        order += [item for item, _ in sent]
        running = [charge for _, charge in sent]
    assert order == ["a 1", "b 1", "a 2", "b 2", "a 3"]


def test_every_queue_sees_changes() -> None:
    fleet, queues = queues_of({"a": [0], "b": [1]})
    add(queues, "a 1", "a 2", "b 1", "b 2")
    running = [charge for _, charge in queues.ready(0.0)]
    assert not queues.ready(0.5)
    for charge in running:
        fleet.first_token(charge, 1.0)
        fleet.finish(charge, 1.0)
    assert sorted(item for item, _ in queues.ready(1.0)) == ["a 2", "b 2"]


def test_a_request_waits_until_a_replica_serves_its_model() -> None:
    rows: dict[str, list[int]] = {}
    fleet, queues = queues_of(rows, most=9)
    add(queues, "a 1")
    assert not queues.ready(0.0)
    rows["a"] = [1]
    fleet.changed.add(1)
    assert [charge.replica for _, charge in queues.ready(1.0)] == [1]


def test_late_requests_are_dropped_and_cancelled_ones_removed() -> None:
    _, queues = queues_of({"a": [0], "b": [1]})
    queues.add("late", RoutingRequest(100, deadline_s=1.0, model="a"), 0.0)
    queues.add("gone", RoutingRequest(100, model="b"), 0.0)
    queues.remove("gone")
    assert queues.ready(2.0) == []
    assert queues.expired() == ["late"]
    assert (queues.expired(), len(queues)) == ([], 0)


def test_policies_see_only_replicas_of_the_model() -> None:
    fleet = ReplicaTable([ReplicaLimits(str(number)) for number in range(3)])
    policy = RoundRobin()
    queues = ModelQueues[str](fleet, lambda: ImmediateDispatcher(fleet, policy), lambda model: (1,))
    add(queues, "a 1", "a 2", "a 3")
    assert [charge.replica for _, charge in queues.ready(0.0)] == [1, 1, 1]


@given(
    available=st.lists(st.booleans(), min_size=1, max_size=6),
    shown=st.sets(st.integers(0, 5)),
    shut=st.sets(st.integers(0, 5)),
)
def test_replicas_that_are_hidden_for_a_while_keep_their_state(
    available: list[bool], shown: set[int], shut: set[int]
) -> None:
    fleet = ReplicaTable([ReplicaLimits(str(number)) for number in range(len(available))])
    for number, is_open in enumerate(available):
        fleet.set_available(number, is_open)
    rows = {row for row in shown if row < len(available)}
    with fleet.only(sorted(rows)):
        assert [row for row in fleet.numbers() if row not in rows] == []
        for row in rows & shut:
            fleet.set_available(row, False)
    expected = [is_open and row not in rows & shut for row, is_open in enumerate(available)]
    assert fleet.available.tolist() == expected
    assert fleet.all_available == all(expected)


@pytest.mark.parametrize("models", [("a",), ("a", "b"), ("a", "b", "c")])
def test_next_look_is_the_earliest_of_all_queues(models: tuple[str, ...]) -> None:
    fleet, queues = queues_of({model: [at] for at, model in enumerate(models)}, most=99, replicas=3)
    fleet.prefill_slots[:] = 0
    fleet.hold_s[:] = 0.0
    for model in models:
        add(queues, f"{model} 1", f"{model} 2")
    assert len(queues.ready(0.0)) == len(models)
    ends_s = [float(fleet.head_until_s[at]) for at in range(len(models))]
    assert queues.wake_s == pytest.approx(max(min(ends_s), 0.001))
