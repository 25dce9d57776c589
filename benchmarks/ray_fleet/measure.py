"""Runs the parts: the ways in turn, a killed replica, clients that disconnect."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from benchmarks.gateway import gateway_process
from benchmarks.ray_fleet.client import MODEL, Answer, Order, PrefixLoad
from benchmarks.ray_fleet.cluster import RayCluster
from benchmarks.run_process import run_module
from benchmarks.workload import quantile
from forebay.clients.ray import DEPLOYMENT, Ports
from forebay.clients.ray.instance import engine_urls, fleet_application
from forebay.clients.ray.rest import ServeRest
from forebay.deploy.ray.config import RayFleetSpec, load_fleet
from forebay.deploy.ray.fleet import apply_fleet, fleet_status, remove_fleet
from forebay.errors import LaunchError
from forebay.testing.replica import ReplicaProcess, fetch_report
from forebay.testing.replica.__main__ import parse, script_of

RAY, SERVE, GATEWAY, DIRECT, IN_TURN = "ray", "serve", "gateway", "direct", "in_turn"
WAYS = {
    RAY: "our gateway before the fleet on Ray",
    SERVE: "a Ray program before it: Serve chooses, by our router",
    GATEWAY: "our gateway before replicas of its own",
    DIRECT: "no gateway: each group to its replica on Ray",
    IN_TURN: "no gateway: to the replicas on Ray in turn",
}
TARGET_DIFFERENCE, TARGET_ADDED_MS = 0.03, 15.0
MIN_FOR_P99 = 1000


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives of an answer: complete, with first token and end at most this long after it was due."""

    ttft_ms: float = 200.0
    e2el_ms: float = 1000.0

    def met(self, answer: Answer) -> bool:
        return answer.whole and answer.first_ms <= self.ttft_ms and answer.whole_ms <= self.e2el_ms


def way_figures(answers: Sequence[Answer], slo: Slo) -> dict[str, Any]:
    whole = [answer for answer in answers if answer.whole]
    prompts = sum(answer.prompt_tokens for answer in whole)
    first = sorted(answer.first_ms for answer in whole)
    return {
        "requests": len(answers),
        "failed": len(answers) - len(whole),
        "hit_share": sum(answer.cached_tokens for answer in whole) / prompts if prompts else 0.0,
        "goodput": sum(map(slo.met, answers)) / len(answers) if answers else 0.0,
        "ttft_ms_p50": quantile(first, 0.5) if first else None,
        "ttft_ms_p99": quantile(first, 0.99) if len(first) >= MIN_FOR_P99 else None,
        "e2el_ms_p50": quantile(sorted(one.whole_ms for one in whole), 0.5) if whole else None,
    }


def compared(ways: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The fleet on Ray as a share of our gateway alone, and against the direct call."""
    ray, gateway, direct = ways[RAY], ways[GATEWAY], ways[DIRECT]
    found: dict[str, Any] = {
        f"{name}_difference": ray[name] / gateway[name] - 1 if gateway[name] else None
        for name in ("hit_share", "goodput")
    }
    both = ray["ttft_ms_p50"], direct["ttft_ms_p50"]
    found["added_ttft_ms_p50"] = None if None in both else both[0] - both[1]
    return found


def kill_figures(answers: Sequence[Answer], deadline_s: float) -> dict[str, Any]:
    whole = [answer.whole_ms for answer in answers if answer.whole]
    return {
        "requests": len(answers),
        "lost": len(answers) - len(whole),
        "broken": sum(answer.broken for answer in answers),
        "again": sum(answer.calls > 1 for answer in answers),
        "slowest_ms": max(whole, default=None),
        "deadline_s": deadline_s,
    }


def report(
    rounds: Mapping[str, Sequence[Sequence[Answer]]],
    slo: Slo,
    kills: Mapping[str, Mapping[str, Any]],
    hung_up: Mapping[str, int],
) -> dict[str, Any]:
    ways = {
        way: {
            **way_figures([answer for one in seen for answer in one], slo),
            "rounds": [_short(way_figures(one, slo)) for one in seen],
        }
        for way, seen in rounds.items()
    }
    compared_ways = compared(ways)
    added = compared_ways["added_ttft_ms_p50"]
    return {
        "slo": asdict(slo),
        "ways": ways,
        "compared": compared_ways,
        "killed": dict(kills),
        "hung_up": dict(hung_up),
        "targets": {"difference": TARGET_DIFFERENCE, "added_ttft_ms_p50": TARGET_ADDED_MS},
        "passed": {
            "hit_share": _within(compared_ways["hit_share_difference"]),
            "goodput": _within(compared_ways["goodput_difference"]),
            "added_ttft": added is not None and added <= TARGET_ADDED_MS,
            "killed": all(not one["lost"] for one in kills.values()),
            "hung_up": hung_up["aborted"] == hung_up["requests"] and not hung_up["completed"],
        },
    }


def _short(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("hit_share", "goodput", "ttft_ms_p50")}


def _within(difference: float | None) -> bool:
    return difference is not None and difference >= -TARGET_DIFFERENCE


NAME, REPLICAS = "figures", 4
SCRIPT = {
    "delay": "1:0.01",
    "prefill-s-per-char": "0.00005",
    "token-s": "0.005",
    "chunks": "8",
    "slots": "8",
    "block-chars": "512",
    "cache-blocks": "64",
}
CLIENT_TIMEOUT_S = 200.0
SETTLE_S = 3.0
REPLACE_TIMEOUT_S = 120.0
LOOK_S = 0.5

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RayOptions:
    """`rounds` of `load` each way, and one in turn; then kills under loads with answers of `kill_tokens` and
    a deadline, and `hang_ups` clients that leave an answer of `hang_up_tokens`."""

    load: PrefixLoad = field(default_factory=PrefixLoad)
    rounds: int = 4
    slo: Slo = field(default_factory=Slo)
    kill_tokens: int = 128
    kill_after_s: float = 4.0
    deadline_s: float = 10.0
    hang_ups: int = 40
    hang_up_tokens: int = 512


def measure_ray(options: RayOptions, ray: Path, note: Note = lambda _: None) -> dict[str, Any]:
    words = [word for name, value in SCRIPT.items() for word in (f"--{name}", value)]
    script = script_of(parse([*words, "--model", MODEL]), "")
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-ray-")))
        note("Ray starts")
        cluster = stack.enter_context(RayCluster(ray))
        fleet = stack.enter_context(fleet_on(cluster, words, place, note))
        own = [stack.enter_context(ReplicaProcess(script)).url for _ in range(REPLICAS)]
        config = place / "gateway.yaml"
        config.write_bytes(orjson.dumps({"engine": {"ray": fleet.place}}))
        on_ray = stack.enter_context(gateway_process(config=config))
        alone = stack.enter_context(gateway_process(own))
        program = stack.enter_context(front_process(cluster))
        engines = fleet.all_urls(note)
        orders = {
            DIRECT: Order(options.load, engines, by_group=True),
            RAY: Order(options.load, (on_ray,)),
            SERVE: Order(options.load, (program,)),
            GATEWAY: Order(options.load, (alone,)),
        }
        rounds = _rounds(options, orders, Order(options.load, engines), note)
        kills = {
            "gateway": _killed(options, Order(options.load, (on_ray,)), fleet, note),
            "pipeline": _killed(options, Order(options.load, ray=fleet.place), fleet, note),
        }
        note("clients hang up")
        hung_up = _hung_up(options, on_ray, fleet)
    return {
        "replicas": REPLICAS,
        "script": SCRIPT,
        "options": asdict(options),
        **report(rounds, options.slo, kills, hung_up),
    }


@dataclass(frozen=True, slots=True)
class FleetOnRay:
    cluster: RayCluster
    spec: RayFleetSpec

    @property
    def place(self) -> str:
        return f"{self.cluster.address}/{NAME}"

    def urls(self) -> list[str]:
        return list(asyncio.run(self._look())[0])

    def all_urls(self, note: Note) -> tuple[str, ...]:
        """The engines, once Serve reports all: the direct call would leave out a missing one."""
        for _ in range(round(REPLACE_TIMEOUT_S / LOOK_S)):
            if len(urls := self.urls()) == REPLICAS:
                return tuple(urls)
            note(
                f"Serve reports {len(urls)} of {REPLICAS} engines: {self._status()}; {self.cluster.warned()}"
            )
            time.sleep(LOOK_S)
        raise LaunchError(f"after {REPLACE_TIMEOUT_S:g} s Serve did not report {REPLICAS} engines")

    def processes(self) -> dict[str, int]:
        """The process of Serve's replica that owns each engine, by the engine's URL."""
        return asyncio.run(self._look())[1]

    def _status(self) -> str:
        async def look() -> dict[str, Any] | None:
            async with ServeRest(self.cluster.address) as rest:
                return await fleet_status(rest, self.spec)

        return str(asyncio.run(look()))

    async def _look(self) -> tuple[tuple[str, ...], dict[str, int]]:
        async with ServeRest(self.cluster.address) as rest:
            found = fleet_application(await rest.instance(), NAME, rest.address)
        ports, urls = Ports(self.spec.first_port, self.spec.ports), engine_urls(found)
        serving = found.deployments[DEPLOYMENT].serving() if urls else ()
        pids = {f"http://{one.node_ip}:{ports.of(one.pid)}": one.pid for one in serving if one.pid}
        return urls, pids


@contextmanager
def fleet_on(cluster: RayCluster, words: list[str], place: Path, note: Note) -> Iterator[FleetOnRay]:
    document = cluster.fleet(NAME) | {"model": MODEL, "replicas": REPLICAS, "args": words}
    path = place / "fleet.yaml"
    path.write_bytes(orjson.dumps(document))
    spec = load_fleet(path, address=cluster.address)

    async def apply() -> None:
        async with ServeRest(cluster.address) as rest:
            await apply_fleet(rest, spec, note)

    async def remove() -> None:
        async with ServeRest(cluster.address) as rest:
            await remove_fleet(rest, spec, note)

    asyncio.run(apply())
    yield FleetOnRay(cluster, spec)
    asyncio.run(remove())


@contextmanager
def front_process(cluster: RayCluster) -> Iterator[str]:
    """A program on the cluster that calls the fleet by Serve's handle; its URL. Raises `LaunchError` if it
    does not start."""
    with cluster.program("-m", "benchmarks.ray_fleet.front", NAME) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if "http://" not in line:
            raise LaunchError(f"the Ray program did not start: {cluster.output()}")
        yield line.strip()


def _rounds(
    options: RayOptions, orders: dict[str, Order], in_turn: Order, note: Note
) -> dict[str, list[list[Answer]]]:
    seen: dict[str, list[list[Answer]]] = {way: [] for way in (*orders, IN_TURN)}
    for number in range(options.rounds):
        ways = list(orders) if number % 2 else list(orders)[::-1]
        for way in [*ways, IN_TURN] if number == 0 else ways:
            note(f"round {number + 1} of {options.rounds}: {way}")
            order = in_turn if way == IN_TURN else orders[way]
            load = replace(options.load, nonce=f"{way}-{number}", seed=options.load.seed + number)
            answers = run_client(replace(order, load=load))
            seen[way].append([answer for answer in answers if answer.index >= load.warm_up])
    return seen


def _killed(options: RayOptions, order: Order, fleet: FleetOnRay, note: Note) -> dict[str, Any]:
    client = "pipeline" if order.ray else "gateway"
    note(f"a replica is killed: {client}")
    load = replace(options.load, nonce=f"kill-{client}", max_tokens=options.kill_tokens)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_client, replace(order, load=load, deadline_s=options.deadline_s))
        _sleep_until_due(options.kill_after_s, running.done)
        busy = {url: fetch_report(url).in_flight for url in fleet.urls()}
        victim = max(busy, key=lambda url: busy[url])
        os.kill(fleet.processes()[victim], signal.SIGKILL)
        replaced_s = _replaced_s(fleet, victim)
        found = kill_figures(running.result(), options.deadline_s)
    if order.ray:
        # It fails over by itself and does not report that.
        found |= {"broken": None, "again": None}
    return {**found, "in_flight": busy[victim], "replaced_s": replaced_s}


def _replaced_s(fleet: FleetOnRay, victim: str) -> float:
    """Seconds until there are as many replicas as before. Polls rarely, because each poll slows the load
    down."""
    begin_s = time.monotonic()
    while len(urls := fleet.urls()) < REPLICAS or victim in urls:
        if time.monotonic() - begin_s > REPLACE_TIMEOUT_S:
            raise LaunchError(f"after {REPLACE_TIMEOUT_S:g} s the killed replica had no successor")
        time.sleep(LOOK_S)
    return time.monotonic() - begin_s


def _hung_up(options: RayOptions, gateway: str, fleet: FleetOnRay) -> dict[str, int]:
    load = replace(
        options.load, requests=options.hang_ups, max_tokens=options.hang_up_tokens, nonce="hang-up"
    )
    before = [fetch_report(url) for url in fleet.urls()]
    left = run_client(Order(load, (gateway,), hang_up=True))
    time.sleep(SETTLE_S)
    after = [fetch_report(url) for url in fleet.urls()]
    return {
        "requests": sum(answer.first_ms > 0 for answer in left),
        "aborted": sum(one.aborted for one in after) - sum(one.aborted for one in before),
        "completed": sum(one.completed for one in after) - sum(one.completed for one in before),
        "still_in_flight": sum(one.in_flight for one in after),
    }


def run_client(order: Order) -> list[Answer]:
    found = run_module("benchmarks.ray_fleet.client", order.to_json(), timeout_s=CLIENT_TIMEOUT_S)
    return [Answer(*fields) for fields in json.loads(found)]


def _sleep_until_due(seconds: float, done: Callable[[], bool]) -> None:
    time.sleep(seconds)
    if done():
        raise LaunchError("the client ended before the kill")
