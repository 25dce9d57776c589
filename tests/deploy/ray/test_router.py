"""The router as Serve calls it, without Ray."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.harness.clock import ManualClock

from forebay.deploy.ray.choice import ReplicaChooser

NAME = "forebay.deploy.ray.router"
PREFIX = "What all requests of a group have in common. " * 100


@dataclass(eq=False)
class Running:
    """A replica, as Serve represents it."""

    name: str
    routing_stats: dict[str, Any] = field(default_factory=dict)
    replica_metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def replica_id(self) -> Any:
        return SimpleNamespace(unique_id=self.name)


class Pending:
    """A request, as Serve represents it."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.args, self.kwargs = list(args), kwargs
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.routing_context = SimpleNamespace(should_backoff=False)


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = ModuleType("ray.serve.request_router")
    for name in ("PendingRequest", "RequestRouter", "RunningReplica"):
        setattr(made, name, type(name, (), {}))
    for name in ("ray", "ray.serve"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "ray.serve.request_router", made)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    found = import_module(NAME).FleetRouter()
    found.initialize_state()
    yield found
    monkeypatch.delitem(sys.modules, NAME, raising=False)


async def send(router: Any, replicas: list[Running], pending: Pending, instead: Running | None = None) -> str:
    """The destination of the request; `instead`: Serve's choice."""
    ranks = await router.choose_replicas(replicas, pending)
    assert {each.name for rank in ranks for each in rank} == {each.name for each in replicas}
    assert pending.routing_context.should_backoff
    best = ranks[0][0]
    pending.future.set_result(instead or best)
    await asyncio.sleep(0)
    return str(best.name)


async def test_prefix_is_routed_to_its_replica(router: Any) -> None:
    clock = ManualClock()
    router._chooser = ReplicaChooser(clock)
    replicas = [Running("a"), Running("b"), Running("c")]
    assert await send(router, replicas, Pending({"prompt": PREFIX}), instead=replicas[1]) == "a"
    clock.advance(1.0)
    assert await send(router, replicas, Pending(body={"prompt": f"{PREFIX} and more"})) == "b"


async def test_replica_state_of_serve_is_read_when_it_changes(router: Any) -> None:
    clock = ManualClock()
    router._chooser = ReplicaChooser(clock)
    replicas = [Running("a"), Running("b")]
    assert await send(router, replicas, Pending(PREFIX)) == "a"
    clock.advance(1.0)
    changed = [Running("a", {"away": True}), replicas[1]]
    assert await send(router, changed, Pending(PREFIX)) == "b", "though a has the prefix"
    assert await send(router, changed[:1], Pending(PREFIX)) == "a"


async def test_abandoned_request_does_not_count(router: Any) -> None:
    replicas = [Running("a")]
    pending = Pending(PREFIX)
    await router.choose_replicas(replicas, pending)
    assert router._chooser.in_flight("a") == 1
    pending.future.cancel()
    await asyncio.sleep(0)
    assert router._chooser.in_flight("a") == 0
    assert not router._placements


async def test_nothing_is_kept_of_a_request_that_serve_drops(router: Any) -> None:
    pending = Pending(PREFIX)
    await router.choose_replicas([Running("a")], pending)
    assert len(router._placements) == 1
    del pending
    assert not router._placements


async def test_serve_chooses_if_the_router_fails(router: Any, caplog: pytest.LogCaptureFixture) -> None:
    broken = [Running("a", routing_stats=None), Running("b")]  # type: ignore[arg-type]
    for _ in range(3):
        pending = Pending("hello")
        assert await router.choose_replicas(broken, pending) == [broken]
        assert pending.routing_context.should_backoff
    assert len(caplog.records) == 1, "said once"
    assert caplog.records[0].exc_info is not None


async def test_without_a_request_or_replicas_there_is_no_choice(router: Any) -> None:
    replicas = [Running("a")]
    assert await router.choose_replicas(replicas) == [replicas]
    pending = Pending("hello")
    assert await router.choose_replicas([], pending) == []
    assert pending.routing_context.should_backoff, "or Serve would ask again at once"
