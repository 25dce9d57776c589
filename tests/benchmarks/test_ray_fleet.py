"""The fleet on Ray against our gateway: the load, the client on scripted replicas, and the report."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from benchmarks.ray_fleet.client import MODEL, Answer, Order, PrefixLoad, over_fleet, over_http
from benchmarks.ray_fleet.measure import (
    DIRECT,
    GATEWAY,
    RAY,
    Slo,
    compared,
    kill_figures,
    report,
    way_figures,
)
from tests.harness.ray_serve import ScriptedServe, application, body

from forebay.testing.replica import FakeReplica, ReplicaScript, ReplicaThread
from forebay.testing.script import Faults, Fixed

LOAD = PrefixLoad(requests=12, rate_per_s=400.0, warm_up=0, groups=2, nonce="a")
SCRIPT = ReplicaScript(models=(MODEL,), delay=Fixed(0.0), chunks=4, cache_blocks=64)


def drive(order: Order) -> list[Answer]:
    return asyncio.run(over_http(order))


def test_broken_and_refused_requests_are_repeated_within_the_deadline() -> None:
    broken = replace(SCRIPT, faults=Faults((("cut", 0.4), ("503", 0.3)), seed=1))
    with ReplicaThread(broken) as replica:
        once = drive(Order(LOAD, (replica.url,)))
        again = drive(Order(replace(LOAD, nonce="b"), (replica.url,), deadline_s=20.0))
    assert 0 < kill_figures(once, 0.0)["lost"] < 12
    assert all(answer.calls == 1 for answer in once)
    found = kill_figures(again, 20.0)
    assert found["lost"] == 0
    assert found["again"] > 0
    assert found["broken"] > 0


def test_disconnecting_clients_leave_at_the_first_token() -> None:
    slow = replace(SCRIPT, token_s=0.5)
    with ReplicaThread(slow) as replica:
        seen = drive(Order(LOAD, (replica.url,), hang_up=True))
        assert all(answer.first_ms > 0 and not answer.whole for answer in seen)
        assert replica.report().completed == 0


async def test_the_client_of_pipelines_finds_the_replicas_on_ray() -> None:
    broken = replace(SCRIPT, faults=Faults((("cut", 0.3),), seed=1))
    async with FakeReplica(broken) as replica:
        told = application("fleet", states=("RUNNING",))
        told["deployments"]["engine"]["replicas"][0]["node_ip"] = replica.host
        told["deployed_app_config"]["args"] |= {"first_port": replica.port, "ports": 1}
        async with ScriptedServe([body(told)]).served() as serve:
            seen = await over_fleet(Order(LOAD, ray=f"{serve.address}/fleet", deadline_s=20.0))
    assert all(answer.whole and 0 < answer.first_ms <= answer.whole_ms for answer in seen)
    assert any(answer.calls > 1 for answer in seen)
    assert any(answer.cached_tokens for answer in seen)


def answers(first_ms: float, cached: int, count: int = 10) -> list[Answer]:
    return [Answer(n, True, first_ms, first_ms + 50, 100, cached) for n in range(count)]


def test_the_figures_of_a_way() -> None:
    lost = Answer(10)
    found = way_figures(
        [*answers(30.0, 80, 9), Answer(9, True, 250.0, 300.0, 100, 0), lost], Slo(ttft_ms=200)
    )
    assert found["hit_share"] == 0.72
    assert found["goodput"] == pytest.approx(9 / 11)
    assert (found["requests"], found["failed"]) == (11, 1)
    assert (found["ttft_ms_p50"], found["ttft_ms_p99"]) == (30.0, None)
    assert way_figures(answers(30.0, 80, 1000), Slo())["ttft_ms_p99"] == 30.0
    assert way_figures([lost], Slo())["ttft_ms_p50"] is None


def test_the_fleet_on_ray_is_compared_with_gateway_and_direct_call() -> None:
    ways = {
        way: way_figures(answers(first_ms, cached), Slo())
        for way, first_ms, cached in ((RAY, 45.0, 78), (GATEWAY, 44.0, 80), (DIRECT, 40.0, 80))
    }
    found = compared(ways)
    assert found["hit_share_difference"] == pytest.approx(-0.025)
    assert found["goodput_difference"] == 0
    assert found["added_ttft_ms_p50"] == 5.0


def document(**given: Any) -> dict[str, Any]:
    rounds = {RAY: [answers(45.0, given.get("cached", 80))], GATEWAY: [answers(44.0, 80)]}
    rounds[DIRECT] = [answers(given.get("direct_ms", 40.0), 80)]
    killed = kill_figures([*answers(40.0, 80), *given.get("lost", ())], 10.0)
    kills = {"gateway": {**killed, "in_flight": 4, "replaced_s": 3.5}}
    left = {"requests": 40, "aborted": given.get("aborted", 40), "completed": 0, "still_in_flight": 0}
    return report(rounds, Slo(), kills, left)


@pytest.mark.parametrize(
    ("given", "missed"),
    [
        ({}, []),
        ({"cached": 90}, []),
        ({"cached": 77}, ["hit_share"]),
        ({"direct_ms": 29.0}, ["added_ttft"]),
        ({"lost": [Answer(10)]}, ["killed"]),
        ({"aborted": 39}, ["hung_up"]),
    ],
)
def test_a_report_shows_which_targets_are_missed(given: dict[str, Any], missed: list[str]) -> None:
    found = document(**given)
    assert [name for name, passed in found["passed"].items() if not passed] == missed
    assert found["ways"][RAY]["rounds"] == [
        {"hit_share": given.get("cached", 80) / 100, "goodput": 1.0, "ttft_ms_p50": 45.0}
    ]
    assert json.loads(json.dumps(found)) == found


def test_a_load_follows_from_its_seed_and_a_nonce_changes_its_texts_alone() -> None:
    same, other = replace(LOAD), replace(LOAD, nonce="b")
    assert [same.texts(index) for index in range(12)] == [LOAD.texts(index) for index in range(12)]
    assert (other.due_s, other.group_of) == (LOAD.due_s, LOAD.group_of)
    first = LOAD.group_of[0]
    (shared, own), others = LOAD.texts(0), [n for n in range(1, 12) if LOAD.group_of[n] == first]
    assert (len(shared), len(own)) == (4096, 512)
    assert {LOAD.texts(index)[0] for index in others} == {shared}
    assert own not in {LOAD.texts(index)[1] for index in others}
    assert other.texts(0)[0][:20] != shared[:20]
    assert Order.from_json(Order(LOAD, ("http://a",), True).to_json()) == Order(LOAD, ("http://a",), True)


def test_a_group_that_keeps_its_replica_is_cached_after_one_request() -> None:
    with ReplicaThread(SCRIPT) as one, ReplicaThread(SCRIPT) as other:
        seen = drive(Order(LOAD, (one.url, other.url), by_group=True))
        reports = [one.report(), other.report()]
    assert all(answer.whole and answer.calls == 1 for answer in seen)
    hits = [answer.cached_tokens * 4 // 4096 for answer in seen]
    assert hits.count(0) == 2, "each group's first request"
    assert set(hits) == {0, 1}
    by_group = [{f"a-{n}" for n, group in enumerate(LOAD.group_of) if group == each} for each in (0, 1)]
    assert [set(found.calls) for found in reports] == by_group
