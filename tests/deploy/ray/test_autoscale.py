"""A fleet gets the number of replicas that the pipeline needs, and keeps its number if that is unknown."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
from tests.harness.clock import ManualClock
from tests.harness.ray_serve import ScriptedServe, application, body

from forebay.deploy.controller.decision import Decider, DeploymentState
from forebay.deploy.kubernetes.deployment import IN_FLIGHT, WANTED
from forebay.deploy.ray.autoscale import FleetPart, RayScaler
from forebay.errors import DeployError
from forebay.fleet.autoscale.base import ScalingLimits
from forebay.gateway.peak_load import PEAK_LOAD

TWO = application("fleet", states=("RUNNING", "RUNNING"))


class Pipeline:
    """Scripted metrics; None: no answer."""

    def __init__(self) -> None:
        self.wanted: dict[str, float | None] = {"http://a/metrics": None}
        self.in_flight = 0

    async def read(self, url: str) -> str:
        wanted = self.wanted[url]
        if wanted is None:
            raise DeployError(f"{url}: cannot read metrics: connection refused")
        return f'{WANTED}{{host="a"}} {wanted}\n{IN_FLIGHT} {self.in_flight}\n'


async def one_each(url: str) -> tuple[str, ...]:
    """One address per name."""
    return (url,)


async def rounds(
    pipeline: Pipeline, answers: list[Any], wanted: list[float | None], settle_s: float = 0.0, **limits: Any
) -> list[int]:
    """One round per wanted number, two seconds apart; returns the requested numbers."""
    clock = ManualClock()
    async with ScriptedServe(answers).served() as serve:
        bounds = ScalingLimits(**{"least": 1, "most": 4, **limits})
        decider = Decider(bounds, settle_s=settle_s, begins_with_most=True)
        scaler = RayScaler(
            serve.address, "fleet", tuple(pipeline.wanted), decider, clock, pipeline.read, one_each
        )
        for each in wanted:
            pipeline.wanted["http://a/metrics"] = each
            await scaler.round()
            clock.advance(2.0)
        assert all(path.endswith("/fleet/deployments/engine/scale") for path, _ in serve.scaled)
        return [found["target_num_replicas"] for _, found in serve.scaled]


async def test_the_fleet_follows_the_pipeline_within_its_limits() -> None:
    assert await rounds(Pipeline(), [body(TWO)], [3, 9, 2, 0]) == [3, 4, 1]


async def test_a_first_version_at_the_maximum_gets_the_wanted_number_at_once() -> None:
    begun = body(application("fleet", states=("STARTING",) * 4))
    assert await rounds(Pipeline(), [begun], [None, 1], settle_s=60.0) == [1]
    assert await rounds(Pipeline(), [begun], [None, 1], settle_s=60.0, most=5) == [], "it has begun long ago"


async def test_unknown_values_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert await rounds(Pipeline(), [body(TWO)], [None, None]) == []
    assert [record.message for record in caplog.records] == [
        "the load of the replicas is unknown: http://a/metrics: cannot read metrics: connection refused; "
        "no pod of the pipeline reports how many replicas it needs"
    ], "said once"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (body(), "has no application fleet"),
        (body(application("fleet", import_path="web:app")), "is not a fleet of Forebay"),
        (b"no JSON", "expected JSON from Ray Serve"),
    ],
    ids=["none", "another's", "no JSON"],
)
async def test_failing_cluster_is_reported_and_retried(
    answer: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await rounds(Pipeline(), [answer, answer, body(TWO)], [3, 3, 3]) == [3]
    assert sum(said in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("health", "trigger"),
    [("UNHEALTHY", "REPLICA_STARTUP_FAILED"), ("DEPLOY_FAILED", "REPLICA_STARTUP_FAILED")],
)
async def test_no_more_replicas_are_requested_while_one_is_not_ready(
    health: str, trigger: str, caplog: pytest.LogCaptureFixture
) -> None:
    states = ("RUNNING", "STARTING")
    troubled = application("fleet", states=states, message="no room", health=health, trigger=trigger)
    assert await rounds(Pipeline(), [body(troubled)], [4]) == []
    assert "not raised above 2: a replica does not become ready: no room" in caplog.text


async def test_ended_engine_does_not_block_others() -> None:
    states = ("RUNNING", "STARTING")
    healing = application("fleet", states=states, health="UNHEALTHY", trigger="HEALTH_CHECK_FAILED")
    assert await rounds(Pipeline(), [body(healing)], [4]) == [4]


async def test_a_fleet_that_is_being_removed_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert await rounds(Pipeline(), [body(application("fleet", status="DELETING"))], [4]) == []
    assert "fleet: it is being removed" in caplog.text


async def test_failing_address_allows_scaling_up_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = Pipeline()
    pipeline.wanted["http://b/metrics"] = None
    assert await rounds(pipeline, [body(TWO)], [1, 1, 3]) == [3]
    assert [record.message for record in caplog.records] == [
        "some metrics are missing, so no replica is removed: "
        "http://b/metrics: cannot read metrics: connection refused"
    ], "said once"


async def test_gateway_requests_add_to_the_pipelines_target() -> None:
    clock, answers = (
        ManualClock(),
        {"http://a/metrics": f"{WANTED} 1\n", "http://g/metrics": f"{PEAK_LOAD} 65\n"},
    )

    async def read(url: str) -> str:
        return answers[url]

    async with ScriptedServe([body(TWO)]).served() as serve:
        decider, metrics = Decider(ScalingLimits(0, 9)), ["http://a/metrics"]
        scaler = RayScaler(
            serve.address, "fleet", metrics, decider, clock, read, one_each, ["http://g/metrics"]
        )
        await scaler.round()
    assert [found["target_num_replicas"] for _, found in serve.scaled] == [4]


@dataclass
class Clusters:
    """Two clusters behind one name: an old one and its successor."""

    old: ScriptedServe
    new: ScriptedServe

    async def addresses(self, url: str) -> tuple[str, ...]:
        return (self.old.address, self.new.address) if url == "http://heads:8265" else (url,)

    async def scaled(self, wanted: float | None) -> tuple[list[int], list[int]]:
        """The numbers requested of each in one round."""
        pipeline = Pipeline()
        pipeline.wanted["http://a/metrics"] = wanted
        decider = Decider(ScalingLimits(0, 8), settle_s=0.0)
        async with self.old.served(), self.new.served():
            scaler = RayScaler(
                "http://heads:8265",
                "fleet",
                tuple(pipeline.wanted),
                decider,
                ManualClock(),
                pipeline.read,
                self.addresses,
            )
            await scaler.round()
        old, new = (
            [found["target_num_replicas"] for _, found in serve.scaled] for serve in (self.old, self.new)
        )
        return old, new


def share(states: int, percent: float) -> ScriptedServe:
    """A cluster with this many replicas and this share of the fleet."""
    found = body(application("fleet", states=("RUNNING",) * states))
    return ScriptedServe([{**found, "target_capacity": percent}])


@pytest.mark.parametrize(
    ("old", "new", "wanted", "asked"),
    [
        (share(4, 100), share(0, 0), 6, ([6], [])),
        (share(6, 100), share(1, 100), 6, ([], [6])),
        (share(5, 80), share(0, 20), 6, ([], [1])),
        (share(5, 80), share(1, 40), 6, ([], [2])),
        (share(6, 0), share(6, 100), 6, ([0], [])),
        (share(4, 100), share(1, 100), None, ([], [4])),
    ],
    ids=["begun", "as large", "a step", "a next step", "taken over", "nothing known"],
)
async def test_while_a_cluster_takes_over_each_gets_its_share(
    old: ScriptedServe, new: ScriptedServe, wanted: float | None, asked: tuple[list[int], list[int]]
) -> None:
    assert await Clusters(old, new).scaled(wanted) == asked


async def test_a_cluster_that_has_no_fleet_yet_does_not_hold_up_the_other() -> None:
    assert await Clusters(share(2, 100), ScriptedServe([body()])).scaled(3) == ([3], [])


def test_a_share_is_rounded_as_serve_does() -> None:
    state = DeploymentState("fleet", "", "", 2, 2)
    assert [FleetPart("", state, percent).share(5) for percent in (0, 1, 30, 50, 100)] == [0, 1, 2, 3, 5]
    assert FleetPart("", state, 50.0).share(0) == 0
    assert FleetPart("", state, 50.0).whole().replicas == 4


async def test_each_address_of_a_name_is_read() -> None:
    pipeline = Pipeline()
    pipeline.wanted = {"http://10.0.0.1/metrics": 1, "http://10.0.0.2/metrics": 3}

    async def addresses(url: str) -> tuple[str, ...]:
        return tuple(pipeline.wanted) if url == "http://metrics/metrics" else (url,)

    decider = Decider(ScalingLimits(1, 4), settle_s=0.0)
    async with ScriptedServe([body(TWO)]).served() as serve:
        scaler = RayScaler(
            serve.address,
            "fleet",
            ("http://metrics/metrics",),
            decider,
            ManualClock(),
            pipeline.read,
            addresses,
        )
        await scaler.round()
        assert [found["target_num_replicas"] for _, found in serve.scaled] == [3]


async def test_scaling_steps_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await rounds(Pipeline(), [body(TWO)], [3])
    assert "fleet: 2 -> 3 replicas: the pipeline needs 3" in caplog.text
