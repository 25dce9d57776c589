"""Kills the API server repeatedly under controller and router, while others write the same objects."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import orjson

from benchmarks.kubernetes.burst import CONTROLLER_IMAGE, ENGINE_IMAGE, PIPELINE_IMAGE
from benchmarks.kubernetes.plane import Api, ControlPlane
from benchmarks.kubernetes.seen import summary
from forebay.clients.kubernetes.connection import find_cluster, open_async_client, open_client
from forebay.clients.kubernetes.watch import Collection, Trouble, follow
from forebay.clock import SystemClock
from forebay.deploy.controller.cluster import ClusterCalls, DeploymentChanged
from forebay.deploy.controller.decision import DeploymentState
from forebay.deploy.controller.loop import Controller, ControllerScaling
from forebay.deploy.kubernetes import Deployment, load_deployment, render
from forebay.deploy.kubernetes.api import apply_all, open_api
from forebay.deploy.kubernetes.deployment import ENGINE, IN_FLIGHT, PIPELINE, WANTED
from forebay.errors import DeployError, LaunchError, SettingError
from forebay.fleet.autoscale.base import ScalingLimits
from forebay.fleet.endpoints import endpoint_urls

NAME = NAMESPACE = "restarts"
MAX_REPLICAS = 4
ROUND_S = 0.2
LOOK_S = 0.02
LONGEST_S = 60.0
SEED = 1
HOLD_EVERY = 10
READY_S = 300.0
"""Kubernetes' own programs call a server that restarts repeatedly less and less often."""
PER_REPLICA = 32
ROUNDS = 3
"""Controller rounds that must keep the replicas needed by requests in flight."""
MORE = 20
"""Maximum of additional restarts, until a watch has expired and requests have kept a replica."""


@dataclass(slots=True)
class RestartReport:
    """Outcome.

    `wrong`: wrong numbers of replicas, with the restart. `held`: restarts during which requests in flight
    kept surplus replicas. `conflicts`: patches of the controller that the server refused because another
    client had written. `expired`: times that the router had to list again, because the server had dropped the
    version of its watch. `strayed`: restarts after which the router's list differed from the server's.
    `scaled_s`: to the scale, from the signal or the server's return, whichever was later.
    """

    restarts: int = 0
    changes: int = 0
    held: int = 0
    conflicts: int = 0
    expired: int = 0
    strayed: int = 0
    wrong: list[str] = field(default_factory=list)
    scaled_s: list[float] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong and every planned situation occurred."""
        return (
            not self.wrong
            and not self.strayed
            and self.held > 0
            and self.conflicts > 0
            and self.expired > 0
            and bool(self.scaled_s)
            and max(self.scaled_s) <= 5
        )

    def document(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self), **summary(self.scaled_s)}


class CountedCalls(ClusterCalls):
    conflicts = 0
    _patches = 0

    def scale(self, state: DeploymentState, wanted: int) -> None:
        self._patches += 1
        if self._patches % 2:
            path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{state.name}"
            body = orjson.dumps({"metadata": {"annotations": {"between": str(self._patches)}}})
            form = {"content-type": "application/merge-patch+json"}
            self._ask("PATCH", path, "Deployment", content=body, headers=form)
        try:
            super().scale(state, wanted)
        except DeploymentChanged:
            self.conflicts += 1
            raise


@dataclass(slots=True)
class Signal:
    """The pipeline's metrics: needed replicas (None: unknown) and requests in flight."""

    wanted: int | None = None
    in_flight: int = 0
    rounds: int = 0

    def __call__(self, urls: Sequence[str]) -> list[str | DeployError]:
        self.rounds += 1
        wanted = self.wanted
        found = f"{WANTED} {wanted}\n{IN_FLIGHT} {self.in_flight}\n"
        return [DeployError(f"{url}: cannot read metrics") if wanted is None else found for url in urls]


def deployment_of(folder: Path) -> Deployment:
    """An engine with a controller, and a pipeline that exists only as metrics."""
    document = {
        "name": NAME,
        "source": {"type": "generator", "rate": 1},
        "prompt": "{{ text }}",
        "sink": {"type": "jsonl", "path": str(folder / "results")},
        "scaling": {"min": 1, "max": MAX_REPLICAS},
    }
    settings = {
        "namespace": NAMESPACE,
        "pipeline": {
            "image": PIPELINE_IMAGE,
            "state": f"file://{folder}/state",
            "volumes": [{"path": str(folder), "claim": "results"}],
        },
        "engine": {"image": ENGINE_IMAGE, "model": "fake", "cpu": "1", "memory": "1Gi"},
        "scaling": {
            "by": "controller",
            "image": CONTROLLER_IMAGE,
            "min": 1,
            "max": MAX_REPLICAS,
            "settle_s": 0,
        },
        "monitoring": {"pod_monitor": False},
    }
    (folder / "pipeline.yaml").write_bytes(orjson.dumps(document))
    (folder / "deploy.yaml").write_bytes(orjson.dumps(settings))
    return load_deployment(folder / "pipeline.yaml")


class Restarts:
    """The drill on a control plane with fake pods."""

    def __init__(self, plane: ControlPlane, folder: Path, note: Callable[[str], None]) -> None:
        self._plane = plane
        self._deployment = deployment_of(folder)
        self._note = note
        self._signal = Signal()
        self._report = RestartReport()
        self._allowed = {1}
        self._scale = self._ready = 0
        self._urls: tuple[str, ...] = ()
        self._watched = False
        self._next_hold = 0
        self._random = Random(SEED)
        self._name = self._deployment.name(ENGINE)
        self._slices = Collection(
            f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices",
            NAMESPACE,
            f"kubernetes.io/service-name={self._name}",
            "the endpoints",
        )

    async def run(self, times: int) -> RestartReport:
        """Restart the server `times` times, or more until every situation has occurred; blocks."""
        self._prepare()
        async with open_async_client(find_cluster()) as http:
            self._api = Api(http)
            await self._api.patch(
                f"/api/v1/namespaces/{NAMESPACE}/pods/job/status",
                {"status": {"phase": "Running", "podIP": "10.244.9.9", "podIPs": [{"ip": "10.244.9.9"}]}},
            )
            tasks = [asyncio.create_task(work) for work in (self._watch(), self._route(), self._disturb())]
            try:
                with self._controller():
                    await self._until("the first replica", lambda: self._scale == 1)
                    for number in range(times + MORE):
                        if number >= times and self._report.expired and self._report.held:
                            break
                        await self._restart(number)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return self._report

    def _prepare(self) -> None:
        plane = self._plane
        plane.kubectl("create", "namespace", NAMESPACE)
        room = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "fake"}}
        plane.create("node", {**node, "status": {"capacity": room, "allocatable": room}})
        with open_api(namespace=NAMESPACE) as api:
            list(apply_all(api, [each for each in render(self._deployment) if each.part == "engine"]))
        plane.kubectl("-n", NAMESPACE, "wait", "--for=create", "serviceaccount/default", "--timeout=60s")
        # On no node: the test sets its metrics.
        plane.create(
            "job",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": "job",
                    "namespace": NAMESPACE,
                    "labels": self._deployment.labels(PIPELINE),
                },
                "spec": {
                    "nodeSelector": {"nowhere": "true"},
                    "containers": [{"name": "job", "image": PIPELINE_IMAGE}],
                },
            },
        )

    @contextmanager
    def _controller(self) -> Iterator[None]:
        ended = threading.Event()
        chosen = self._deployment.selector(PIPELINE)
        pods = ",".join(f"{key}={value}" for key, value in chosen.items())
        with open_client(find_cluster()) as http:
            calls = CountedCalls(http, NAMESPACE)
            controller = Controller(
                ControllerScaling(
                    {self._name: 1}, pods, ScalingLimits(1, MAX_REPLICAS), PER_REPLICA, settle_s=0.0
                ),
                calls,
                self._signal,
                SystemClock(),
                "here",
            )

            def rounds() -> None:
                while not ended.wait(ROUND_S):
                    controller.round()

            thread = threading.Thread(target=rounds)
            thread.start()
            try:
                yield
            finally:
                ended.set()
                thread.join()
                self._report.conflicts = calls.conflicts

    async def _restart(self, number: int) -> None:
        before = self._scale
        wanted = self._random.choice([each for each in range(1, MAX_REPLICAS + 1) if each != before])
        kept = wanted
        if wanted < before and number >= self._next_hold:
            # Fewer are needed, but more have requests in flight, which requires ready replicas.
            self._next_hold = number + HOLD_EVERY
            kept = self._random.randint(wanted + 1, before)
            await self._until(f"{before} replicas ready", lambda: self._ready == before, within_s=READY_S)
        self._signal.in_flight = kept * PER_REPLICA if kept > wanted else 0
        self._allowed = {before, kept}
        # The demand changes before, during or after the outage, or is unknown until the server is back.
        kind = number % 4
        if kind == 0:
            self._signal.wanted = wanted
        await asyncio.to_thread(self._plane.run, "kill", "kube-apiserver")
        if kind == 1:
            self._signal.wanted = wanted
        elif kind == 2:
            self._signal.wanted = None
        await asyncio.sleep(self._random.uniform(0, 1.5))
        await asyncio.to_thread(self._plane.run, "start", "kube-apiserver")
        await self._answers()
        began_s = time.monotonic()
        if kind > 1:
            self._signal.wanted = wanted
        if kept > wanted:
            await self._hold(kept, f"restart {number + 1}")
            self._allowed = {kept, wanted}
            self._signal.in_flight = 0
            began_s = time.monotonic()
        await self._until(f"{wanted} replicas after restart {number + 1}", lambda: self._scale == wanted)
        self._report.scaled_s.append(round(time.monotonic() - began_s, 2))
        self._allowed = {wanted}
        self._report.restarts += 1
        self._report.changes += 1
        self._report.strayed += not await self._routed()
        self._note(
            f"restart {number + 1}: {before} -> {wanted} replicas after {self._report.scaled_s[-1]:.1f} s"
        )

    async def _hold(self, kept: int, when: str) -> None:
        await self._until(f"{kept} replicas in use after {when}", lambda: self._scale == kept)
        self._allowed = {kept}
        last = self._signal.rounds + ROUNDS
        await self._until(f"{ROUNDS} rounds after {when}", lambda: self._signal.rounds > last)
        self._report.held += 1

    async def _answers(self) -> None:
        await self._api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{self._name}")

    async def _routed(self) -> bool:
        ends_s = time.monotonic() + LONGEST_S
        while time.monotonic() < ends_s:
            listed = await self._api.get(self._slices.path)
            mine = [
                each
                for each in listed["items"]
                if each["metadata"]["labels"].get("kubernetes.io/service-name") == self._name
            ]
            if endpoint_urls(mine, "http", where="the server") == self._urls:
                return True
            await asyncio.sleep(ROUND_S)
        return False

    async def _until(self, what: str, done: Callable[[], bool], *, within_s: float = LONGEST_S) -> None:
        ends_s = time.monotonic() + within_s
        while not done():
            if time.monotonic() > ends_s:
                raise LaunchError(f"not within {within_s:.0f} s: {what}")
            await asyncio.sleep(LOOK_S)

    async def _watch(self) -> None:
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
        every = Collection(path, NAMESPACE, "", "the deployments")
        async with aclosing(follow(self._api.http, every)) as found:
            async for each in found:
                if isinstance(each, Trouble) or self._name not in each:
                    continue
                deployment = each[self._name]
                self._scale = int(deployment["spec"]["replicas"])
                self._ready = int((deployment.get("status") or {}).get("readyReplicas") or 0)
                if self._scale not in self._allowed:
                    allowed = sorted(self._allowed)
                    self._report.wrong.append(
                        f"restart {self._report.restarts + 1}: {self._scale}, wanted {allowed}"
                    )

    async def _route(self) -> None:

        async def asked(request: Any) -> None:
            if "watch" not in request.url.params:
                # The server reported, in the watch or instead of it, that its version is too old.
                self._report.expired += self._watched
                self._watched = False

        async def answered(response: Any) -> None:
            if "watch" in response.request.url.params:
                self._watched = response.status_code in (200, 410)

        async with open_async_client(find_cluster()) as http:
            http.event_hooks = {"request": [asked], "response": [answered]}
            async with aclosing(follow(http, self._slices)) as found:
                async for each in found:
                    if not isinstance(each, Trouble):
                        with suppress(SettingError):
                            self._urls = endpoint_urls(each.values(), "http", where="the endpoints")

    async def _disturb(self) -> None:
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{self._name}"
        number = 0
        while True:
            number += 1
            body: Mapping[str, Any] = {"metadata": {"annotations": {"other": str(number)}}}
            with suppress(DeployError):
                await self._api.patch(path, body)
            await asyncio.sleep(LOOK_S)
