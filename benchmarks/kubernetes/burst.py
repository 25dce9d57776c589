"""A burst on a Deployment of replicas: scaled up and down by the controller, with every event
counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from benchmarks.kubernetes.plane import Api
from benchmarks.kubernetes.seen import Seen, levels
from forebay.bench.stream.events import event_lines, fields_of
from forebay.bench.stream.feed import FeedProcess, now_us
from forebay.clients.kubernetes.watch import Collection, Trouble, follow
from forebay.connectors.files.sink import read_jsonl_sink
from forebay.deploy.kubernetes import Deployment, load_deployment, render
from forebay.deploy.kubernetes.api import apply_all, open_api
from forebay.deploy.kubernetes.deployment import ENGINE, ENGINE_PORT, FLINK_METRICS_PORT, PIPELINE
from forebay.deploy.kubernetes.pipeline import job_document
from forebay.errors import PipelineFailed
from forebay.json_numbers import read_json

if TYPE_CHECKING:
    import httpx2

PIPELINE_IMAGE, ENGINE_IMAGE, CONTROLLER_IMAGE = "pipeline:here", "vllm:here", "controller:here"
NAME, NAMESPACE = "burst", "burst"
ID = "forebay_event"
MIN_REPLICAS, MAX_REPLICAS = 1, 2
AHEAD_S = 5.0
"""The stream is written this far ahead."""
LOOK_S = 0.2
LINE_S = 1.0
EVENTS = 1_000_000


@dataclass(frozen=True, slots=True)
class BurstOptions:
    """The stream: `rate` events per second all the time, and after `quiet_s` another `burst` events
    within `burst_s`. `engine`, `scaling`, `pipeline`: more keys for these parts of the deployment
    and pipeline files."""

    rate: float
    burst: int
    engine: Mapping[str, Any]
    pipeline: Mapping[str, Any]
    scaling: Mapping[str, Any]
    quiet_s: float = 10.0
    burst_s: float = 5.0
    settle_s: int = 10
    longest_s: float = 540.0

    def due_s(self, begin_s: float, end_s: float) -> list[float]:
        """When the events of a span are due, in seconds from the start of the stream."""
        steady = (number / self.rate for number in count(round(begin_s * self.rate)))
        more = (self.quiet_s + self.burst_s * number / self.burst for number in range(self.burst))
        found = [at_s for at_s in more if begin_s <= at_s < end_s]
        for at_s in steady:
            if at_s >= end_s:
                return sorted(found)
            if at_s >= begin_s:
                found.append(at_s)
        return []


def deployment_of(options: BurstOptions, url: str, folder: Path) -> Deployment:
    document = {
        "name": NAME,
        "source": {"type": "sse", "url": url, "idle_timeout_s": 3600.0},
        "id": "{{ " + ID + " }}",
        "prompt": "What is this about? {{ text }}",
        "sink": {"type": "jsonl", "path": str(folder / "results")},
        "dead_letters": {"type": "jsonl", "path": str(folder / "dead-letters")},
        # So that all waiting events are counted.
        "capacity": options.burst,
        "scaling": {"min": MIN_REPLICAS, "max": MAX_REPLICAS, **options.scaling},
        **options.pipeline,
    }
    settings = {
        "namespace": NAMESPACE,
        "pipeline": {
            "image": PIPELINE_IMAGE,
            "state": f"file://{folder}/state",
            "volumes": [{"path": str(folder), "claim": "results"}],
        },
        "engine": {"image": ENGINE_IMAGE, "cpu": "1", "memory": "1Gi", **options.engine},
        "scaling": {
            "by": "controller",
            "image": CONTROLLER_IMAGE,
            "min": MIN_REPLICAS,
            "max": MAX_REPLICAS,
            "settle_s": options.settle_s,
        },
        "monitoring": {"pod_monitor": False},
    }
    (folder / "pipeline.yaml").write_bytes(orjson.dumps(document))
    (folder / "deploy.yaml").write_bytes(orjson.dumps(settings))
    return load_deployment(folder / "pipeline.yaml")


def job_pod(deployment: Deployment, folder: Path) -> dict[str, Any]:
    """The pod of the job: `forebay run` with the FlinkDeployment's file, labels and rights."""
    reporter = {
        "metrics.reporters": "prometheus",
        "metrics.reporter.prometheus.factory.class": (
            "org.apache.flink.metrics.prometheus.PrometheusReporterFactory"
        ),
        "metrics.reporter.prometheus.port": str(FLINK_METRICS_PORT),
    }
    assert deployment.job is not None
    document = {
        **job_document(deployment, deployment.job),
        "checkpoint": {"dir": str(folder / "state"), "interval_s": 2.0},
        "flink": reporter,
    }
    (folder / "job.yaml").write_bytes(orjson.dumps(document))
    container = {
        "name": "job",
        "image": PIPELINE_IMAGE,
        "args": ["run", str(folder / "job.yaml")],
        "env": [{"name": "FOREBAY_HOME", "value": str(folder / "home")}],
    }
    spec = {
        "serviceAccountName": deployment.name(PIPELINE),
        # Events come from this machine's loopback.
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 60,
        "containers": [container],
    }
    metadata = {"name": f"{NAME}-job", "labels": deployment.labels(PIPELINE)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@dataclass(frozen=True, slots=True)
class BurstReport:
    events: int
    answered: int
    dead_letters: int
    lost: int
    doubled: int
    cut_off: int
    levels: list[int]
    scaled_up_s: list[float]
    known_s: list[float]
    routed_s: list[float]
    sent_late: float
    at_stop: float
    replicas: list[dict[str, Any]]
    controller: list[str]
    course: list[dict[str, Any]]

    @property
    def passed(self) -> bool:
        """Whether replicas went from one to two and back, every event was answered once at its first call,
        and all was in time."""
        return (
            not any((self.dead_letters, self.lost, self.doubled, self.cut_off, self.sent_late))
            and self.answered == self.events
            and self.levels == [MIN_REPLICAS, MAX_REPLICAS, MIN_REPLICAS]
            and bool(self.scaled_up_s)
            and max(self.scaled_up_s) <= 5
            and bool(self.known_s)
            and max(self.known_s) <= 2
        )

    def document(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}


class Stream:
    def __init__(self, options: BurstOptions, feed: FeedProcess, folder: Path) -> None:
        self._options = options
        self._feed = feed
        self._folder = folder
        self._begin_us = now_us()
        self._until_s = 0.0
        self._fields: Iterator[dict[str, Any]] = iter(fields_of(None, EVENTS, 1, NAME))
        self.ids: list[str] = []

    def go_on(self) -> None:
        elapsed_s = (now_us() - self._begin_us) / 1e6
        if elapsed_s + AHEAD_S / 2 < self._until_s:
            return
        end_s = elapsed_s + AHEAD_S
        due = self._options.due_s(self._until_s, end_s)
        ids = [f"event-{len(self.ids) + number}" for number in range(len(due))]
        due_us = [self._begin_us + round(at_s * 1e6) for at_s in due]
        path = self._folder / "events.txt"
        path.write_bytes(b"".join(event_lines(ids, due_us, islice(self._fields, len(due)))))
        self._feed.load(path)
        self.ids += ids
        self._until_s = end_s


class BurstRun:
    """One run on a cluster whose node is up."""

    def __init__(
        self, options: BurstOptions, api: Api, folder: Path, note: Callable[[str], None] = lambda words: None
    ) -> None:
        self._options = options
        self._api = api
        self._folder = folder
        self._note = note
        self._seen = Seen()
        self._clock = asyncio.get_running_loop().time
        self._began_s = self._clock()

    async def run(self) -> BurstReport:
        import httpx2

        with FeedProcess(self._folder) as feed:
            deployment = deployment_of(self._options, feed.url, self._folder)
            with open_api(namespace=NAMESPACE) as api:
                list(apply_all(api, render(deployment)))
            async with httpx2.AsyncClient(trust_env=False, timeout=2.0) as http:
                tasks = [
                    asyncio.create_task(work)
                    for work in (self._deployments(deployment), self._pods(deployment), self._poll(http))
                ]
                try:
                    return await self._course(deployment, feed)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    async def _course(self, deployment: Deployment, feed: FeedProcess) -> BurstReport:
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        await self._until("a replica is ready", lambda: any(each.ready_s for each in self._seen.here()))
        await self._api.create(pods, job_pod(deployment, self._folder))
        await self._until("the job runs", lambda: self._seen.job_runs)
        self._seen.course.clear()
        stream = Stream(self._options, feed, self._folder)
        await self._until("two replicas", lambda: self._level() == MAX_REPLICAS, stream)
        await self._until("one replica again", lambda: len(self._seen.here()) == MIN_REPLICAS, stream)
        await self._until(
            "every event is answered", lambda: self._results() + self._dead() >= len(stream.ids)
        )
        report = await self._report(stream)
        await self._api.delete(f"{pods}/{NAME}-job")
        return report

    def _level(self) -> int:
        return sum(each.ready_s is not None for each in self._seen.here())

    async def _until(self, what: str, done: Callable[[], bool], stream: Stream | None = None) -> None:
        line_s, course = 0.0, ""
        while not done():
            now_s = self._clock() - self._began_s
            if stream is not None:
                stream.go_on()
            if now_s - line_s >= LINE_S:
                line_s = now_s
                line = self._seen.line(now_s)
                course = (
                    f"{now_s:.0f} s, wanted {line['wanted']}, scale {line['scale']}, ready "
                    f"{line['ready']}, starting {line['starting']}, draining {line['draining']}, at replicas "
                    f"{line['running']}, waiting {line['waiting']}"
                )
                self._note(f"until {what}: {course}")
            if now_s > self._options.longest_s:
                raise PipelineFailed(f"not within {self._options.longest_s:.0f} s: {what} ({course})")
            await asyncio.sleep(LOOK_S)

    def _results(self) -> int:
        return _rows(self._folder / "results")

    def _dead(self) -> int:
        return _rows(self._folder / "dead-letters")

    async def _deployments(self, deployment: Deployment) -> None:
        name = deployment.name(ENGINE)
        async for found in self._follow("/apis/apps/v1", "deployments", deployment, ENGINE):
            if name in found:
                self._seen.deployment(found[name], self._clock() - self._began_s)

    async def _pods(self, deployment: Deployment) -> None:
        async for found in self._follow("/api/v1", "pods", deployment, ENGINE):
            self._seen.pods(found, self._clock() - self._began_s)

    async def _follow(self, group: str, plural: str, deployment: Deployment, component: str) -> Any:
        selector = ",".join(f"{key}={value}" for key, value in deployment.selector(component).items())
        path = f"{group}/namespaces/{NAMESPACE}/{plural}"
        async with aclosing(follow(self._api.http, Collection(path, NAMESPACE, selector, plural))) as found:
            async for each in found:
                if not isinstance(each, Trouble):
                    yield each

    async def _poll(self, http: httpx2.AsyncClient) -> None:
        from benchmarks.kubernetes.plane import NODE_IP

        while True:
            replicas = [each for each in self._seen.here() if each.address]
            urls = [f"http://{NODE_IP}:{FLINK_METRICS_PORT}/metrics"]
            urls += [f"http://{each.address}:{ENGINE_PORT}/metrics" for each in replicas]
            texts = await asyncio.gather(*(_text(http, url) for url in urls))
            now_s = self._clock() - self._began_s
            if texts[0] is not None:
                self._seen.pipeline(texts[0], now_s)
            for each, text in zip(replicas, texts[1:], strict=True):
                if text is not None:
                    each.metrics(text, now_s)
            await asyncio.sleep(LOOK_S)

    async def _report(self, stream: Stream) -> BurstReport:
        rows = [read_json(line) for line in read_jsonl_sink(self._folder / "results")]
        counts = Counter(row["fields"][ID] for row in rows)
        dead, seen = self._dead(), self._seen
        listed = await self._api.get(f"/api/v1/namespaces/{NAMESPACE}/events")
        found = [each for each in listed["items"] if each["source"].get("component") == "forebay-autoscale"]
        found.sort(key=lambda each: int(each["metadata"]["resourceVersion"]))
        replicas = sorted(seen.replicas.values(), key=lambda each: each.ready_s or float("inf"))
        return BurstReport(
            events=len(stream.ids),
            answered=len(counts),
            dead_letters=dead,
            lost=len(stream.ids) - len(counts) - dead,
            doubled=sum(number > 1 for number in counts.values()),
            cut_off=sum(row["attempts"] != 1 for row in rows),
            levels=levels(seen.course),
            scaled_up_s=seen.scaled_up_s(),
            known_s=seen.known_s(),
            routed_s=seen.routed_s(),
            sent_late=sum(each.sent_late for each in replicas),
            at_stop=sum(each.at_stop for each in replicas),
            replicas=[replace(each, name=f"{number}").document() for number, each in enumerate(replicas, 1)],
            controller=[str(each["message"]) for each in found],
            course=seen.course,
        )


def _rows(folder: Path) -> int:
    return sum(1 for _ in read_jsonl_sink(folder)) if folder.is_dir() else 0


async def _text(http: httpx2.AsyncClient, url: str) -> str | None:
    import httpx2

    with suppress(httpx2.HTTPError):
        answer = await http.get(url)
        if answer.is_success:
            return answer.text
    return None
