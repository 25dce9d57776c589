from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.harness.clock import ManualClock

from forebay.engine.replica import ServedModel
from forebay.errors import Unreachable
from forebay.fleet.health import RULES
from forebay.fleet.replica import Replica
from forebay.fleet.replica_table import ReplicaTable
from forebay.fleet.served import LEFT_S, LIST_S, REFRESH_PAUSE_S, ServedModels


class ListingReplica:
    def __init__(self, *names: str, lengths: dict[str, int] | None = None) -> None:
        self.names = names
        self.lengths = lengths or {}
        self.asked = 0
        self.away = False

    async def list_models(self, timeout_s: float) -> tuple[ServedModel, ...]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.away:
            raise Unreachable("away")
        return tuple(ServedModel(name, self.lengths.get(name)) for name in self.names)


class ServedFleet:
    def __init__(self, *replicas: ListingReplica, model: str | None = None) -> None:
        self.clock = ManualClock()
        self.rows: dict[int, Replica] = {}
        self.everyone: dict[str, Replica] = {}
        self.changed: list[int] = []
        self.served = ServedModels(model, self.clock, self.rows, self.everyone, self.changed.append)
        for replica in replicas:
            unused: Any = replica
            url = f"http://{len(self.everyone)}"
            self.everyone[url] = Replica(url, unused, RULES, ReplicaTable([]))

    async def join(self) -> None:
        for row, replica in enumerate(self.everyone.values()):
            await self.served.fetch(replica, 1.0)
            replica.row, self.rows[row] = row, replica
            self.served.note_change(replica)

    def leave(self, row: int) -> None:
        replica = self.rows.pop(row)
        del self.everyone[replica.url]
        replica.leaving, replica.row = True, None
        self.served.note_change(replica)


async def test_model_has_the_shortest_context_of_its_replicas() -> None:
    fleet = ServedFleet(
        ListingReplica("a", "b", lengths={"a": 9}), ListingReplica("b", "a", lengths={"a": 7, "b": 5})
    )
    await fleet.join()
    assert {(model.name, model.max_model_len) for model in fleet.served.models()} == {("a", 7), ("b", 5)}
    assert (list(fleet.served.rows("a")), list(fleet.served.rows("c"))) == ([0, 1], [])
    assert fleet.served.only("a") is None
    assert fleet.served.only("c") == ()


async def test_replicas_with_a_longer_or_an_unknown_context() -> None:
    lengths = ({"a": 5}, {"a": 9}, {}, {"a": 5}, {"b": 9})
    fleet = ServedFleet(*(ListingReplica(*(each or "a"), lengths=each) for each in lengths))
    await fleet.join()
    longer = [fleet.served.with_longer_context(row, "a") for row in range(5)]
    assert longer[:4] == [{1, 2}, {2}, set(), {1, 2}]


async def test_wanted_model_hides_all_others() -> None:
    fleet = ServedFleet(ListingReplica("a", "b"), model="a")
    await fleet.join()
    assert [model.name for model in fleet.served.models()] == ["a"]
    assert (fleet.served.knows("a"), fleet.served.knows("b")) == (True, False)


async def test_model_of_a_removed_replica_is_known_for_a_while() -> None:
    fleet = ServedFleet(ListingReplica("a"), ListingReplica("b"))
    await fleet.join()
    fleet.leave(0)
    assert list(fleet.served.rows("a")) == []
    assert fleet.served.knows("a")
    fleet.clock.advance(LEFT_S)
    assert not fleet.served.knows("a")
    assert fleet.served.knows("b")


async def test_model_list_is_refreshed_and_changes_are_reported() -> None:
    lists = ListingReplica("a")
    fleet = ServedFleet(lists)
    await fleet.join()
    (replica,) = fleet.rows.values()
    assert not fleet.served.is_due(replica)
    fleet.clock.advance(LIST_S)
    assert fleet.served.is_due(replica)
    fleet.changed.clear()
    await fleet.served.fetch(replica, 1.0)
    assert fleet.changed == []
    lists.names = ("a", "adapter")
    await fleet.served.fetch(replica, 1.0)
    assert fleet.changed == [0]
    assert list(fleet.served.rows("adapter")) == [0]


async def test_each_replica_is_queried_once_for_all_callers() -> None:
    replicas = ListingReplica("a"), ListingReplica("b")
    fleet = ServedFleet(*replicas)
    await fleet.join()
    replicas[0].away = True
    for pause_s, asked in ((0.0, 2), (0.0, 2), (REFRESH_PAUSE_S, 3)):
        fleet.clock.advance(pause_s)
        await asyncio.gather(*(fleet.served.refresh() for _ in range(20)))
        assert [replica.asked for replica in replicas] == [asked, asked]
    assert fleet.served.knows("a")
    await fleet.served.close()


@pytest.mark.parametrize("model", [None, "a"])
async def test_unqueried_replica_may_serve_any_model(model: str | None) -> None:
    fleet = ServedFleet(ListingReplica("a"), model=model)
    assert not fleet.served.all_listed
    await fleet.join()
    assert fleet.served.all_listed
