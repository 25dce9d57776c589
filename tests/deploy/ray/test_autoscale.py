"""A fleet gets the number of replicas that the pipeline wants, and keeps what it has where it tells none."""

from __future__ import annotations

import logging
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.harness.clock import ManualClock
from tests.harness.ray_serve import ScriptedServe, application, body

from forebay.autoscale.base import Limits
from forebay.deploy.controller.decision import Decider
from forebay.deploy.kubernetes.metrics import IN_FLIGHT, WANTED
from forebay.deploy.ray.autoscale import RayScaler, read_text
from forebay.errors import DeployError
from forebay.ray_serve.rest import ServeRest

TWO = application("fleet", states=("RUNNING", "RUNNING"))


class Pipeline:
    """Metrics that say what they are told to say; None: nothing."""

    def __init__(self) -> None:
        self.wanted: dict[str, float | None] = {"http://a/metrics": None}
        self.in_flight = 0

    async def read(self, url: str) -> str:
        wanted = self.wanted[url]
        if wanted is None:
            raise DeployError(f"{url} tells no metrics: connection refused")
        return f'{WANTED}{{host="a"}} {wanted}\n{IN_FLIGHT} {self.in_flight}\n'


async def rounds(
    pipeline: Pipeline, answers: list[Any], wanted: list[float | None], settle_s: float = 0.0, **limits: Any
) -> list[int]:
    """One round for each wanted number, two seconds apart; gives the numbers that were asked for."""
    clock = ManualClock()
    async with ScriptedServe(answers).served() as serve, ServeRest(serve.address) as rest:
        decider = Decider(Limits(**{"least": 1, "most": 4, **limits}), settle_s=settle_s)
        scaler = RayScaler(rest, "fleet", tuple(pipeline.wanted), decider, clock, pipeline.read)
        for each in wanted:
            pipeline.wanted["http://a/metrics"] = each
            await scaler.round()
            clock.advance(2.0)
        assert all(path.endswith("/fleet/deployments/engine/scale") for path, _ in serve.scaled)
        return [found["target_num_replicas"] for _, found in serve.scaled]


async def test_the_fleet_follows_the_pipeline_within_its_limits() -> None:
    assert await rounds(Pipeline(), [body(TWO)], [3, 9, 2, 0]) == [3, 4, 1]


async def test_of_several_addresses_the_largest_number_counts() -> None:
    pipeline = Pipeline()
    pipeline.wanted["http://b/metrics"] = 4
    assert await rounds(pipeline, [body(TWO)], [3]) == [4]


async def test_fewer_only_after_a_while() -> None:
    assert await rounds(Pipeline(), [body(TWO)], [1] * 6, settle_s=6.0) == [1, 1]


async def test_never_fewer_than_requests_in_flight_need() -> None:
    pipeline = Pipeline()
    pipeline.in_flight = 33
    assert await rounds(pipeline, [body(TWO)], [1]) == []


async def test_what_is_not_known_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert await rounds(Pipeline(), [body(TWO)], [None, None]) == []
    assert [record.message for record in caplog.records] == [
        "the wanted number of replicas is not known: http://a/metrics tells no metrics: connection refused"
    ], "said once"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (body(), "has no application fleet"),
        (body(application("fleet", import_path="web:app")), "is no fleet of Forebay's"),
        (b"no JSON", "expected JSON from Ray Serve"),
    ],
    ids=["none", "another's", "no JSON"],
)
async def test_a_cluster_that_fails_is_told_and_asked_again(
    answer: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await rounds(Pipeline(), [answer, answer, body(TWO)], [3, 3, 3]) == [3]
    assert sum(said in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("health", "trigger"),
    [("UNHEALTHY", "REPLICA_STARTUP_FAILED"), ("DEPLOY_FAILED", "REPLICA_STARTUP_FAILED")],
)
async def test_while_a_replica_does_not_get_ready_no_more_are_asked_for(
    health: str, trigger: str, caplog: pytest.LogCaptureFixture
) -> None:
    states = ("RUNNING", "STARTING")
    troubled = application("fleet", states=states, message="no room", health=health, trigger=trigger)
    assert await rounds(Pipeline(), [body(troubled)], [4]) == []
    assert "no more than 2 are asked for: a replica does not get ready: no room" in caplog.text


async def test_an_engine_that_has_ended_does_not_hold_the_others_back() -> None:
    states = ("RUNNING", "STARTING")
    healing = application("fleet", states=states, health="UNHEALTHY", trigger="HEALTH_CHECK_FAILED")
    assert await rounds(Pipeline(), [body(healing)], [4]) == [4]


async def test_a_fleet_that_is_being_removed_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert await rounds(Pipeline(), [body(application("fleet", status="DELETING"))], [4]) == []
    assert "fleet: it is being removed" in caplog.text


async def test_where_one_of_several_addresses_fails_the_fleet_may_only_grow(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = Pipeline()
    pipeline.wanted["http://b/metrics"] = None
    assert await rounds(pipeline, [body(TWO)], [1, 1, 3]) == [3]
    assert [record.message for record in caplog.records] == [
        "not all metrics of the pipeline are read, so no replica is taken away: "
        "http://b/metrics tells no metrics: connection refused"
    ], "said once"


async def test_what_it_does_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await rounds(Pipeline(), [body(TWO)], [3])
    assert "fleet: 2 -> 3 replicas: the pipeline wants 3" in caplog.text


async def test_metrics_are_read_and_what_is_none_is_an_error() -> None:
    async def fine(request: web.Request) -> web.Response:
        return web.Response(text=f"{WANTED} 2\n")

    async def broken(request: web.Request) -> web.Response:
        raise web.HTTPServiceUnavailable

    async def endless(request: web.Request) -> web.Response:
        return web.Response(body=b"#" * ((16 << 20) + 1))

    async def elsewhere(request: web.Request) -> web.Response:
        raise web.HTTPFound("/fine")

    made = web.Application()
    for handler in (fine, broken, endless, elsewhere):
        made.router.add_get(f"/{handler.__name__}", handler)
    async with TestServer(made, host="127.0.0.1") as server, aiohttp.ClientSession() as http:
        assert await read_text(http, str(server.make_url("/fine"))) == f"{WANTED} 2\n"
        with pytest.raises(DeployError, match="tells no metrics: expected status 200, found 503"):
            await read_text(http, str(server.make_url("/broken")))
        with pytest.raises(DeployError, match="found 302"):
            await read_text(http, str(server.make_url("/elsewhere")))
        with pytest.raises(DeployError, match="more than 16 MiB"):
            await read_text(http, str(server.make_url("/endless")))
    with pytest.raises(DeployError, match="tells no metrics"):
        async with aiohttp.ClientSession() as http:
            await read_text(http, "http://127.0.0.1:9/metrics")


@pytest.mark.parametrize("wrong", ["127.0.0.1:9", "host:port", "["], ids=["away", "port", "form"])
async def test_a_password_in_an_address_is_not_shown(wrong: str) -> None:
    async with aiohttp.ClientSession() as http:
        with pytest.raises(DeployError, match="tells no metrics") as caught:
            await read_text(http, f"http://me:geheim@{wrong}/metrics?token=geheim#geheim")
    assert "geheim" not in str(caught.value)
    assert f"http://{wrong}/metrics tells" in str(caught.value)
