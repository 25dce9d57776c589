"""The loads for every peer, and the resulting document."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from benchmarks.peers import tables
from benchmarks.peers.base import ID_IN_PROMPT, Peer, ensure_environment, environment_of, versions
from benchmarks.peers.run import Load, Observed, Place, observe
from forebay.connectors.jars import KAFKA, installed_jar
from forebay.engine.launch import EngineOptions, local_replicas
from forebay.engine.launch.progress import Progress
from forebay.errors import ForebayError
from forebay.settings import Settings
from forebay.testing.kafka import local_kafka
from forebay.testing.replica import ReplicaProcess, ReplicaScript, fetch_report, refuse
from forebay.testing.script import CallReport, Mixture

from benchmarks.places import kafka_to_start  # isort: skip
import asyncio

from benchmarks.peers.base import SYSTEM, event_of
from forebay.engine.client import HttpEngine
from forebay.records import Message, Request, Sampling

PartName = Literal["latency", "vllm", "refusals", "kill"]
PARTS: tuple[PartName, ...] = get_args(PartName)
Document = dict[str, Any]
Note = Callable[[str], None]

SCRIPTED = ReplicaScript(delay=Mixture(), id_in_prompt=ID_IN_PROMPT, retry_after_s=1.0)


@dataclass(frozen=True, slots=True)
class Refusals:
    """From `begin_s` after the first event, every call is refused for `seconds`."""

    begin_s: float
    seconds: float


def load_of(part: PartName, *, quick: bool) -> Load:
    match part:
        case "latency":
            return Load(100, 50 if quick else 120, warm_s=30 if quick else 60, drain_s=20)
        case "vllm":
            return Load(4, 30 if quick else 90, warm_s=10 if quick else 30, drain_s=30)
        case "refusals":
            refused = refusals_of(quick=quick)
            return Load(20, refused.begin_s + refused.seconds + 10, drain_s=60)
        case "kill":
            return Load(50, 16 if quick else 30, kill_at_s=8 if quick else 15, drain_s=90)


def refusals_of(*, quick: bool) -> Refusals:
    return Refusals(5, 20 if quick else 60)


def measure_peers(
    peers: Sequence[Peer],
    parts: Sequence[PartName],
    settings: Settings,
    *,
    quick: bool = False,
    progress: Progress,
    note: Note = lambda _: None,
) -> Document:
    home = kafka_to_start(settings)
    installed_jar(KAFKA, settings.connectors)
    document: Document = {"quick": quick, "peers": {}, "parts": {}}
    pythons: dict[str, Path] = {}
    for peer in peers:
        about: Document = {"title": peer.title, "docs": peer.docs, "limits": dict(peer.limits)}
        document["peers"][peer.name] = about
        try:
            python = ensure_environment(peer, settings, progress)
            about["versions"] = versions(python, peer.packages)
            pythons[peer.name] = python
        except ForebayError as error:
            about["skipped"] = str(error)
            note(f"{peer.title}: skipped: {error}")
    with (
        tempfile.TemporaryDirectory(prefix="forebay-peers-") as folder,
        local_kafka(home, Path(folder) / "kafka") as node,
    ):
        for part in parts:
            load = load_of(part, quick=quick)
            found: Document = {}
            document["parts"][part] = {**_shape(part, load, quick=quick), "peers": found}
            with _engines(part, settings, progress, quick=quick) as engines:
                for number, peer in enumerate(each for each in peers if each.name in pythons):
                    if part in peer.limits:
                        found[peer.name] = {"skipped": peer.limits[part]}
                        continue
                    work = Path(folder) / f"{part}-{number}"
                    work.mkdir()

                    def report(words: str, title: str = peer.title, part: str = part) -> None:
                        note(f"{part}: {title}: {words}")

                    with engines() as (url, model):
                        place = Place(
                            pythons[peer.name],
                            node.bootstrap,
                            url,
                            model,
                            work,
                            settings,
                            environment_of(peer, settings),
                        )
                        found[peer.name] = _measured(part, peer, load, place, report, quick=quick)
    return document


def _measured(
    part: PartName, peer: Peer, load: Load, place: Place, note: Note, *, quick: bool
) -> dict[str, Any]:
    try:
        match part:
            case "latency":
                return _latency(peer, load, place, note)
            case "vllm":
                seen = observe(peer, load, place, note=note)
                return {**tables.common(load, seen), **tables.latency(load, seen, lambda _: 0.0)}
            case "refusals":
                return _refusals(peer, load, place, note, refusals_of(quick=quick))
            case "kill":
                seen = observe(peer, load, place, note=note)
                return {
                    **tables.common(load, seen),
                    **tables.calls(fetch_report(place.engine)),
                    "back_s": None if seen.back_s is None else round(seen.back_s, 1),
                }
    except (ForebayError, AssertionError) as error:
        note(f"failed: {error}")
        return {"failed": str(error)[-1500:]}


def _latency(peer: Peer, load: Load, place: Place, note: Note) -> dict[str, Any]:
    seen = observe(peer, load, place, note=note)
    delay = Mixture()
    return {
        **tables.common(load, seen),
        **tables.latency(load, seen, lambda index: delay(f"event-{index}")),
        **tables.calls(fetch_report(place.engine)),
    }


def _refusals(peer: Peer, load: Load, place: Place, note: Note, refused: Refusals) -> dict[str, Any]:
    counted: list[CallReport] = []
    timers: list[threading.Timer] = []

    def begin() -> None:
        counted.append(fetch_report(place.engine))
        refuse(place.engine, refused.seconds)

    def began(start_s: float) -> None:
        for at_s, do in (
            (refused.begin_s, begin),
            (refused.begin_s + refused.seconds, lambda: counted.append(fetch_report(place.engine))),
        ):
            timers.append(threading.Timer(at_s, do))
            timers[-1].daemon = True
            timers[-1].start()

    seen: Observed = observe(peer, load, place, began=began, note=note)
    for timer in timers:
        timer.join()
    before, after = (sum(report.calls.values()) for report in counted)
    return {
        **tables.common(load, seen),
        **tables.calls(fetch_report(place.engine)),
        "calls_while_refused": after - before,
        "caught_up_s": tables.caught_up_s(load, seen, refused.begin_s + refused.seconds),
    }


def _shape(part: PartName, load: Load, *, quick: bool) -> Document:
    shape: Document = {
        "rate_per_s": load.rate_per_s,
        "seconds": load.seconds,
        "warm_s": load.warm_s,
        "capacity": load.capacity,
        "max_tokens": load.max_tokens,
    }
    if load.kill_at_s is not None:
        shape["kill_at_s"] = load.kill_at_s
    if part == "refusals":
        refused = refusals_of(quick=quick)
        shape |= {"refused_from_s": refused.begin_s, "refused_s": refused.seconds}
    return shape


Engines = Callable[[], Any]


@contextmanager
def _engines(part: PartName, settings: Settings, progress: Progress, *, quick: bool) -> Iterator[Engines]:
    """An engine per peer, as a context manager of its URL and model: a scripted one each, or one
    vLLM for all."""
    if part != "vllm":
        yield _scripted
        return
    options = EngineOptions(kv_cache_gib=0.5, max_model_len=512)
    with local_replicas(1, options, settings=settings, progress=progress) as replicas:
        ask_all(replicas[0], replicas.model, load_of(part, quick=quick))

        @contextmanager
        def one() -> Iterator[tuple[str, str]]:
            yield replicas[0], replicas.model

        yield one


@contextmanager
def _scripted() -> Iterator[tuple[str, str]]:
    with ReplicaProcess(SCRIPTED) as replica:
        yield replica.url, SCRIPTED.models[0]


AT_ONCE = 4
TIMEOUT_S = 60.0


def ask_all(url: str, model: str, load: Load) -> None:
    """Send each event of `load` to the engine once, like the peers will; blocks until all are
    answered."""
    asyncio.run(_ask_all(url, model, load))


async def _ask_all(url: str, model: str, load: Load) -> None:
    engine = HttpEngine(url, stream=False)
    places = asyncio.Semaphore(AT_ONCE)

    async def ask(index: int) -> None:
        id = f"event-{index}"
        messages = (Message("system", SYSTEM), Message("user", event_of(id)["prompt"]))
        sampling = Sampling(max_tokens=load.max_tokens, temperature=0.0)
        async with places:
            await engine.complete(
                Request(id=id, model=model, messages=messages, sampling=sampling), timeout_s=TIMEOUT_S
            )

    try:
        await asyncio.gather(*map(ask, range(load.events)))
    finally:
        await engine.close()
