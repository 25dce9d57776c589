"""A real Prometheus that scraped real pipelines and a gateway has values for the queries of the boards.

Panels with `when`, the wanted replicas and what waits in Kafka are only parsed; alerts are only silent
there."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, get_args

import pytest
from benchmarks.expected_events import TrendsJob
from tests.gateway.conftest import CHAT, QUICK, Served, before
from tools.boards import BOARDS, FOLDER, PAGE, files

from forebay.apps.topics.values import Kind as TopicKind
from forebay.apps.trends.values import TrendKind
from forebay.deploy.alerts import JOB, KAFKA_WAITS, AlertScope, pipeline_alerts
from forebay.flink.metric_names import BY_COMMITS, IN_APPLICATIONS, METRICS, PREFIX
from forebay.ports import free_port
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Faults, Fixed
from forebay.yaml_document import to_yaml

ALERTS = list(pipeline_alerts(AlertScope()))
BUSY = ReplicaScript(delay=Fixed(0.0), faults=Faults((("503", 1.0),)))
LATER = {f"{PREFIX}{name}": each.when for each in METRICS if each.when for name in each.exported} | {
    KAFKA_WAITS: "with a Kafka source"
}
"""Metrics that not every pipeline has, and when it has them."""
REPORTER = "org.apache.flink.metrics.prometheus"
FLINK = re.compile(r"flink_\w+")


@dataclass(frozen=True)
class Query:
    text: str
    legend: str = ""


def queries(name: str, *, when: str = "") -> list[Query]:
    """Those that have values in each run of the kind."""
    return [
        Query(text.replace("$__rate_interval", "1m"), legend)
        for panels in BOARDS[name].values()
        for panel in panels
        if panel.when == when
        for legend, text in panel.queries.items()
        if legend != "wanted"
    ]


@dataclass
class Prometheus:
    url: str
    targets: Path

    def scrape(self, addresses: Iterable[str]) -> None:
        self.targets.write_text(json.dumps([{"targets": list(addresses)}]))

    def get(self, path: str, **parameters: str) -> Any:
        """None until Prometheus has started."""
        try:
            address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
            with urllib.request.urlopen(address, timeout=30) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return None
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        except OSError:
            return None
        return found["data"]

    def answers(self, query: Query) -> bool:
        """Whether the query has values: a rate needs two scrapes, and is NaN before."""
        found = (self.get("query", query=query.text) or {}).get("result", [])
        if not found or any(each["value"][1] == "NaN" for each in found):
            return False
        for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
            assert all(label in each["metric"] for each in found), f"{query.text} has no {label}"
        return True


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus, which answers queries (apt install prometheus)")
    targets = tmp_path / "targets.json"
    targets.write_text("[]")
    jobs = [{"job_name": "all", "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}]}]
    document = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    # JSON is YAML.
    (tmp_path / "prometheus.yml").write_text(json.dumps(document))
    address = f"127.0.0.1:{free_port()}"
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield Prometheus(f"http://{address}", targets)
        finally:
            process.terminate()
            process.wait(60)


async def ask_all(served: Served) -> None:
    """Requests with all outcomes that the gateway counts."""
    counting = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    for body in (counting, CHAT, CHAT, CHAT | {"model": "unknown"}):
        async with served.session.post(served.url + "/v1/chat/completions", json=body) as response:
            await response.read()


@pytest.mark.heavy
async def test_each_query_of_the_fleet_has_values(prometheus: Prometheus) -> None:
    async with before(QUICK, BUSY, routing="round_robin") as (served, replicas):
        urls = [served.url, *(replica.url for replica in replicas)]
        prometheus.scrape(url.removeprefix("http://") for url in urls)
        left = queries("fleet")
        while left:
            await ask_all(served)
            if await asyncio.to_thread(prometheus.answers, left[0]):
                del left[0]
            else:
                await asyncio.sleep(0.1)


def run_until_answered(pipelines: Any, prometheus: Prometheus, wanted: list[Query], **document: Any) -> None:
    """Run a pipeline until all queries have values; its end before that is a failure."""
    port = free_port()
    reporter = {
        "metrics.reporter.prom.factory.class": f"{REPORTER}.PrometheusReporterFactory",
        "metrics.reporter.prom.port": str(port),
    }
    prometheus.scrape([f"127.0.0.1:{port}"])
    left = list(wanted)

    def enough() -> bool:
        left[:] = [query for query in left if not prometheus.answers(query)]
        return not left

    with ReplicaThread(ReplicaScript(delay=Fixed(0.05))) as replica:
        try:
            pipelines.interrupt(pipelines.spec(flink=reporter, **document), replica.url, enough)
        except pytest.fail.Exception:
            pytest.fail("no values: " + "; ".join(query.text for query in left))


@pytest.mark.flink
@pytest.mark.slow
def test_each_query_about_a_pipeline_has_values(pipelines: Any, prometheus: Prometheus) -> None:
    pipelines.write(b"not json", *({"text": f"hello {n}"} for n in range(4000)))
    in_alerts = {name for rule in ALERTS for name in FLINK.findall(rule["expr"])} - LATER.keys()
    last = [Query(name) for name in (*in_alerts, f"{PREFIX}replicas", f"{PREFIX}failures_cause_total")]
    last += queries("pipeline", when=BY_COMMITS)
    run_until_answered(pipelines, prometheus, [*queries("pipeline"), *last], capacity=2)
    names = prometheus.get("label/__name__/values")
    exported = {name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)}
    assert exported <= {name for each in METRICS for name in each.exported}
    assert exported >= {name for each in METRICS if not each.when for name in each.exported}
    for rule in ALERTS:
        assert prometheus.get("query", query=rule["expr"])["result"] == [], rule["alert"]


@pytest.mark.flink
@pytest.mark.slow
def test_each_query_about_an_application_has_values(pipelines: Any, prometheus: Prometheus) -> None:
    job = TrendsJob()
    events = [*job.events(60_000, 1)]
    events.insert(1000, {"text": "it has no time"})
    pipelines.write(*events)
    source = {"type": "jsonl", "path": "in.jsonl", "time": "at", "time_format": "unix_ms"}
    wanted = [*queries("applications")]
    wanted += [Query(f"{PREFIX}{each.exported[0]}") for each in METRICS if each.when == IN_APPLICATIONS]
    # Alerts tell operators apart.
    wanted += [
        Query(f"{PREFIX}{name}", "{{operator_name}}") for name in ("records_total", "dead_letters_total")
    ]
    replay = source | {"replay": {"speed": 30.0}}
    run_until_answered(pipelines, prometheus, wanted, prompt=None, source=replay, **job.document())


def promtool(folder: Path, document: Any) -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool, which checks queries: it comes with Prometheus (apt install prometheus)")
    (folder / "rules.yaml").write_text(to_yaml(document))
    words = [found, "check", "rules", "rules.yaml"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.heavy
def test_all_queries_and_alerts_are_valid(tmp_path: Path) -> None:
    panels = [panel for board in BOARDS.values() for row in board.values() for panel in row]
    texts = [text.replace("$__rate_interval", "1m") for panel in panels for text in panel.queries.values()]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(texts)]
    told = promtool(tmp_path, {"groups": [{"name": "all", "rules": [*rules, *ALERTS]}]})
    assert f"{len(texts) + len(ALERTS)} rules found" in told


def test_optional_panels_state_when_they_have_values() -> None:
    known = {f"{PREFIX}{name}" for each in METRICS for name in each.exported} | {KAFKA_WAITS}
    for name in ("pipeline", "applications", "fleet"):
        for panel in [panel for row in BOARDS[name].values() for panel in row]:
            used = {each for text in panel.queries.values() for each in FLINK.findall(text)}
            used = {each for each in used if not each.startswith(JOB)}
            assert used <= known, panel.title
            if name == "pipeline" and not panel.when:
                later = {LATER[each] for each in used & LATER.keys()}
                assert later <= {"from the first on", "from the first event on"}, panel.title


def test_note_about_findings_names_all_kinds() -> None:
    (note,) = (each.note for each in BOARDS["applications"]["Applications"] if each.title.startswith("Find"))
    trends, topics = (note.split(f"{name}: ")[1].split(".")[0] for name in ("Trends", "Topics"))
    for text, kinds in ((trends, TrendKind), (topics, TopicKind)):
        assert set(get_args(kinds)) <= set(re.findall(r"\w+", text))


def test_boards_alerts_and_table_are_those_of_the_code() -> None:
    for path, text in files():
        assert path.read_text(encoding="utf-8") == text, "run: python -m tools.boards"
    assert {path.name for path in FOLDER.iterdir()} == {path.name for path, _ in files()} - {PAGE.name}


def test_each_alert_has_a_runbook() -> None:
    from tests.deploy.kubernetes.test_monitoring import RULES

    headings = {title.lower() for title in re.findall(r"^### (\w+)$", PAGE.read_text(encoding="utf-8"), re.M)}
    runbooks = {rule["annotations"]["runbook"] for rule in (*ALERTS, *RULES.values())}
    assert {f"docs/how-to/metrics.md#{title}" for title in headings} == runbooks


def test_wanted_and_present_replicas_of_a_fleet_are_in_one_panel() -> None:
    (panel,) = (each for each in BOARDS["fleet"]["Fleet"] if each.title == "Replicas")
    assert list(panel.queries) == ["wanted", "known", "get requests"]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    panels = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
