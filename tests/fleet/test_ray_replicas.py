from __future__ import annotations

import pickle
from contextlib import aclosing
from typing import Any

import pytest
from tests.harness.ray_serve import ScriptedServe, application, body

from forebay.clients.ray.instance import ServeInstance
from forebay.errors import SettingError
from forebay.fleet.endpoints import RayPlace, RayReplicas, look_at
from forebay.gateway.spec import EngineSpec as GatewayEngine
from forebay.pipeline.inference_settings import PipelineEngineSpec


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fleet",
        "http://head:8265",
        "http://head:8265/",
        "head:8265/fleet",
        "http://head:8265/a/b",
        "http://h/A",
    ],
)
def test_other_address_form_is_rejected(text: str) -> None:
    with pytest.raises(SettingError, match=r"ray: expected http://HEAD:8265/NAME"):
        RayReplicas(text)


def test_password_is_not_shown() -> None:
    with pytest.raises(SettingError) as caught:
        RayReplicas("http://me:geheim@head:8265/fleet")
    assert "geheim" not in str(caught.value)


def test_parts_of_an_address() -> None:
    assert RayPlace.parse("http://head:8265/fleet") == RayPlace("http://head:8265", "fleet")


async def test_replicas_follow_the_clusters_list() -> None:
    two, one = ("RUNNING", "RUNNING"), ("STOPPING", "RUNNING")
    answers = [body(application("fleet", states=states)) for states in (two, one, ())]
    async with (
        ScriptedServe([*answers, body()]).served() as serve,
        aclosing(RayReplicas(f"{serve.address}/fleet", 0.0).updates()) as updates,
    ):
        found = [await anext(updates) for _ in range(4)]
    assert found[:3] == [
        ("http://127.0.0.2:20100", "http://127.0.0.2:20101"),
        ("http://127.0.0.2:20101",),
        (),
    ]
    assert isinstance(found[3], SettingError)
    assert "ray: " in str(found[3])


async def test_followers_of_one_fleet_share_a_request() -> None:
    answers = [body(application("fleet", states=states)) for states in (("RUNNING",), ())]
    async with ScriptedServe(answers).served() as serve:
        # Each unpickled, as subtasks have them.
        given = pickle.dumps(RayReplicas(f"{serve.address}/fleet", 1000.0))
        for _ in range(3):
            async with aclosing(pickle.loads(given).updates()) as updates:
                assert await anext(updates) == ("http://127.0.0.2:20100",)
        assert await pickle.loads(given).urls() == (), "a query on its own is not cached"


async def listed(*applications: dict[str, Any]) -> list[tuple[str, ...] | SettingError]:
    answers = [body(each) for each in applications]
    async with (
        ScriptedServe(answers).served() as serve,
        aclosing(RayReplicas(f"{serve.address}/fleet", 0.0).updates()) as updates,
    ):
        return [await anext(updates) for _ in applications]


async def test_last_list_is_kept_while_serve_deploys_or_fails() -> None:
    there = application("fleet", states=("RUNNING",))
    building = application("fleet", status="DEPLOYING", built=False)
    failed = application("fleet", status="DEPLOY_FAILED", built=False, message="no module engine")
    first, *errors, last = await listed(there, building, failed, there)
    assert first == last == ("http://127.0.0.2:20100",)
    assert [str(each) for each in errors if isinstance(each, SettingError)] == [
        "ray: fleet: Serve is building a version, and reports no replicas meanwhile",
        "ray: fleet: Serve did not build the last version: no module engine",
    ]


async def test_new_or_removed_fleet_has_no_replicas() -> None:
    building = application("fleet", status="DEPLOYING", built=False)
    there = application("fleet", states=("RUNNING",))
    deleting = application("fleet", status="DELETING", states=("STOPPING",))
    assert await listed(building, there, deleting) == [(), ("http://127.0.0.2:20100",), ()]


async def test_last_list_is_kept_while_serve_recovers_its_replicas() -> None:
    partly = application("fleet", states=("RUNNING", "RECOVERING"))
    (found,) = await listed(partly)
    assert isinstance(found, SettingError)
    assert "Serve has restarted and does not report all replicas yet" in str(found)


@pytest.mark.parametrize("kind", [PipelineEngineSpec, GatewayEngine])
def test_settings_name_a_fleet(kind: type[PipelineEngineSpec] | type[GatewayEngine]) -> None:
    assert kind(ray="http://head:8265/fleet").replicas() == RayReplicas("http://head:8265/fleet")
    with pytest.raises(ValueError, match="expected http://HEAD:8265/NAME"):
        kind(ray="fleet")


def test_pipeline_runs_in_one_place_only() -> None:
    with pytest.raises(ValueError, match="found several"):
        PipelineEngineSpec(ray="http://head:8265/fleet", dns="http://name:80")


async def test_clusters_behind_one_name_share_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    def fleet(*states: str, node: str) -> dict[str, Any]:
        made = body(application("fleet", states=states))
        for each in made["applications"]["fleet"]["deployments"]["engine"]["replicas"]:
            each["node_ip"] = node
        return made

    old = [fleet("RUNNING", node="10.0.1.1"), fleet("RUNNING", node="10.0.1.1"), fleet(node="10.0.1.1")]
    new = [body(), fleet("RUNNING", node="10.0.1.2"), b"no JSON"]
    async with ScriptedServe(old).served() as one, ScriptedServe(new).served() as other:
        both = (one.address, other.address)

        async def each_address(url: str) -> tuple[str, ...]:
            return both if url == "http://heads:8265" else (url,)

        monkeypatch.setattr("forebay.fleet.endpoints.each_address", each_address)
        async with aclosing(RayReplicas("http://heads:8265/fleet", 0.0).updates()) as updates:
            found = [await anext(updates) for _ in range(3)]
    assert found == [
        ("http://10.0.1.1:20100",),
        ("http://10.0.1.1:20100", "http://10.0.1.2:20100"),
        ("http://10.0.1.2:20100",),
    ], "of a cluster that fails the last list stays"


async def test_name_with_a_new_address_keeps_the_first_ones_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, silent = body(application("fleet", states=("RUNNING",))), b"no JSON"
    empty = body(application("fleet", states=()))
    async with ScriptedServe([there, silent]).served() as one, ScriptedServe([empty]).served() as other:
        heads = [("http://heads:8265",), (one.address, other.address)]

        async def each_address(url: str) -> tuple[str, ...]:
            return heads.pop(0)

        async def look(address: str, fresh_s: float) -> ServeInstance:
            return await look_at(one.address if address == "http://heads:8265" else address)

        monkeypatch.setattr("forebay.fleet.endpoints.each_address", each_address)
        monkeypatch.setattr("forebay.fleet.endpoints.LOOKS.instance", look)
        async with aclosing(RayReplicas("http://heads:8265/fleet", 0.0).updates()) as updates:
            found = [await anext(updates) for _ in range(2)]
    assert found == [("http://127.0.0.2:20100",)] * 2
