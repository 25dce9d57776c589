"""A fleet on a cluster is created, waited for, shown, scaled and removed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.clock import ManualClock
from tests.harness.ray_serve import ScriptedServe, application, body

from forebay.clients.ray.rest import ServeRest
from forebay.deploy.ray.config import RayFleetSpec
from forebay.deploy.ray.fleet import apply_fleet, fleet_status, remove_fleet, scale_fleet
from forebay.errors import DeployError

SPEC = RayFleetSpec(name="fleet", model="m", replicas=2, startup_s=100, drain_s=20)
OLD = application("fleet", states=("RUNNING", "RUNNING"), deployed_s=5.0)
WEB = application("web", import_path="web:app")


class Time:
    """A clock that sleeping advances."""

    def __init__(self) -> None:
        self.clock = ManualClock()

    async def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)


async def test_fleet_is_ready_when_all_replicas_run() -> None:
    starting = application("fleet", status="DEPLOYING", states=("RUNNING", "STARTING"), deployed_s=6.0)
    early = application("fleet", states=("RUNNING",), target=2, deployed_s=6.0)
    done = application("fleet", states=("RUNNING", "RUNNING"), deployed_s=6.0)
    answers = [body(WEB, OLD), body(WEB, OLD), body(starting), body(early), body(done)]
    text: list[str] = []
    async with ScriptedServe(answers).served() as serve, ServeRest(serve.address) as rest:
        found = await apply_fleet(rest, SPEC, text.append, clock=ManualClock(), sleep=Time().sleep)
        assert len(serve.answers) == 1
    assert found.deployed_s == 6.0
    assert len(found.deployments["engine"].running()) == 2
    assert [each["name"] for each in serve.submitted[0]["applications"]] == ["web", "fleet"]
    assert "fleet: deploying: 2 replicas wanted, 1 running, 1 starting" in text


async def test_reason_of_a_failed_start() -> None:
    failed = application("fleet", status="DEPLOY_FAILED", message="no module engine", deployed_s=6.0)
    async with (
        ScriptedServe([body(), body(), body(failed)]).served() as serve,
        ServeRest(serve.address) as rest,
    ):
        with pytest.raises(DeployError, match="fleet: cannot start: no module engine"):
            await apply_fleet(rest, SPEC, clock=ManualClock(), sleep=Time().sleep)


async def test_an_older_failure_is_not_this_one() -> None:
    failed = application("fleet", status="DEPLOY_FAILED", deployed_s=5.0)
    done = application("fleet", states=("RUNNING",), deployed_s=6.0)
    answers = [body(failed), body(failed), body(done)]
    async with ScriptedServe(answers).served() as serve, ServeRest(serve.address) as rest:
        assert (await apply_fleet(rest, SPEC, clock=ManualClock(), sleep=Time().sleep)).status == "RUNNING"


@pytest.mark.heavy
async def test_a_replica_that_never_gets_ready() -> None:
    stuck = application(
        "fleet", status="DEPLOYING", states=("STARTING",), target=2, message="no GPU is free", deployed_s=6.0
    )
    time = Time()
    async with ScriptedServe([body(), body(stuck)]).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match=r"not all replicas run 16\d s after .*no GPU is free"):
            await apply_fleet(rest, SPEC, clock=time.clock, sleep=time.sleep)
    assert 160 <= time.clock.monotonic_s() - ManualClock().monotonic_s() <= 170


async def waited_for(every_s: float, *states: tuple[str, ...]) -> float:
    """Apply a fleet of three whose replicas have these states at one look after the other, `every_s` apart,
    then the last ones. Returns how long that took."""
    time = Time()

    def look(found: tuple[str, ...]) -> dict[str, Any]:
        status = "RUNNING" if found == ("RUNNING",) * 3 else "DEPLOYING"
        return body(application("fleet", status=status, states=found, target=3, deployed_s=6.0))

    async def sleep(seconds: float) -> None:
        await time.sleep(every_s)

    begun_s = time.clock.monotonic_s()
    answers = [body(), *map(look, states)]
    async with ScriptedServe(answers).served() as serve, ServeRest(serve.address) as rest:
        await apply_fleet(rest, SPEC, clock=time.clock, sleep=sleep)
    return time.clock.monotonic_s() - begun_s


async def test_waiting_continues_while_replicas_get_ready() -> None:
    one, two, three = (("RUNNING",) * many for many in (1, 2, 3))
    assert await waited_for(100.0, ("STARTING",), one, two, three) == 300.0


async def test_a_replica_that_fails_again_and_again_is_not_waited_for() -> None:
    rounds = [("RUNNING", "STARTING"), ("RUNNING",)] * 20
    with pytest.raises(DeployError, match=r"not all replicas run 2\d\d s after"):
        await waited_for(50.0, *rounds)


@pytest.mark.parametrize("answer", [b"no JSON", {"applications": []}], ids=["no JSON", "another form"])
async def test_failed_poll_is_reported_and_repeated(answer: Any) -> None:
    done = application("fleet", states=("RUNNING", "RUNNING"), deployed_s=6.0)
    text: list[str] = []
    answers = [body(), answer, body(done), body(done), answer, body()]
    async with ScriptedServe(answers).served() as serve, ServeRest(serve.address) as rest:
        await apply_fleet(rest, SPEC, text.append, clock=ManualClock(), sleep=Time().sleep)
        assert await remove_fleet(rest, SPEC, text.append, clock=ManualClock(), sleep=Time().sleep)
    assert sum("Ray Serve" in each for each in text) == 2


async def test_polls_that_fail_until_the_end_are_the_reason() -> None:
    time = Time()
    async with ScriptedServe([body(), b"no JSON"]).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match=r"not all replicas run 16\d s .*expected JSON from Ray Serve"):
            await apply_fleet(rest, SPEC, clock=time.clock, sleep=time.sleep)


async def test_an_engine_that_ends_meanwhile_is_no_failure() -> None:
    lost = application(
        "fleet", status="DEPLOY_FAILED", trigger="HEALTH_CHECK_FAILED", states=("RUNNING",), deployed_s=6.0
    )
    done = application("fleet", states=("RUNNING", "RUNNING"), deployed_s=6.0)
    answers = [body(), body(lost), body(done)]
    async with ScriptedServe(answers).served() as serve, ServeRest(serve.address) as rest:
        found = await apply_fleet(rest, SPEC, clock=ManualClock(), sleep=Time().sleep)
    assert found.status == "RUNNING"


async def test_fleet_being_removed() -> None:
    going = body(WEB, application("fleet", status="DELETING"))
    text: list[str] = []
    async with ScriptedServe([going] * 5 + [body(WEB)]).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match="still being removed"):
            await apply_fleet(rest, SPEC)
        with pytest.raises(DeployError, match="being removed"):
            await scale_fleet(rest, SPEC, 3)
        found = await fleet_status(rest, SPEC)
        assert found is not None
        assert (found["status"], found["engines"]) == ("DELETING", [])
        assert await remove_fleet(rest, SPEC, text.append, clock=ManualClock(), sleep=Time().sleep)
    assert text == ["fleet: being removed"]
    assert serve.submitted == serve.scaled == []


async def test_nothing_is_submitted_over_anothers_application() -> None:
    taken = body(application("fleet", import_path="web:app"))
    async with ScriptedServe([taken]).served() as serve, ServeRest(serve.address) as rest:
        for action in (apply_fleet, remove_fleet):
            with pytest.raises(DeployError, match="fleet"):
                await action(rest, SPEC)
        with pytest.raises(DeployError, match="fleet"):
            await scale_fleet(rest, SPEC, 3)
    assert serve.submitted == []
    assert serve.scaled == []


async def test_fleet_is_removed_once_it_has_ended() -> None:
    ending = application("fleet", status="DELETING")
    answers = [body(WEB, OLD), body(WEB, ending), body(WEB)]
    async with ScriptedServe(answers).served() as serve, ServeRest(serve.address) as rest:
        assert await remove_fleet(rest, SPEC, clock=ManualClock(), sleep=Time().sleep)
        assert [each["name"] for each in serve.submitted[0]["applications"]] == ["web"]
        assert not await remove_fleet(rest, SPEC)
        assert len(serve.submitted) == 1


async def test_replicas_that_do_not_end() -> None:
    time = Time()
    async with ScriptedServe([body(OLD)]).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match=r"fleet: it has not ended 8\d s after the submission"):
            await remove_fleet(rest, SPEC, clock=time.clock, sleep=time.sleep)


async def test_status_as_a_document() -> None:
    async with ScriptedServe([body(OLD), body()]).served() as serve, ServeRest(serve.address) as rest:
        found = await fleet_status(rest, SPEC)
        assert found is not None
        assert (found["status"], found["wanted"], found["replicas"]) == ("RUNNING", 2, {"RUNNING": 2})
        assert found["engines"] == ["http://127.0.0.2:20100", "http://127.0.0.2:20101"]
        assert await fleet_status(rest, SPEC) is None


async def test_scaled_by_number() -> None:
    async with ScriptedServe([body(OLD)]).served() as serve, ServeRest(serve.address) as rest:
        await scale_fleet(rest, SPEC, 0)
        assert [each for _, each in serve.scaled] == [{"target_num_replicas": 0}]
