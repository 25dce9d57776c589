"""Every query of the Grafana dashboard matches metrics of real gateways, engines and pipelines."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.gateway.conftest import CHAT, QUICK, Served, before

from forebay.deploy.kubernetes.deployment import PREFIX
from forebay.flink.metrics import SCALING_GAUGES
from forebay.ports import free_port
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Faults, Fixed

DASHBOARD = Path(__file__).parents[1] / "docs" / "grafana" / "forebay.json"
PANELS: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
QUERIES = [
    (target["expr"].replace("$__rate_interval", "1m"), target["legendFormat"])
    for panel in PANELS
    for target in panel.get("targets", ())
]
SCRAPED = frozenset(("instance", "job"))
BUSY = ReplicaScript(delay=Fixed(0.0), faults=Faults((("503", 1.0),)))


async def export(served: Served, replicas: list[FakeReplica]) -> str:
    """Requests with all outcomes that the gateway counts, then the metrics of it and an engine."""
    counting = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    for body in (counting, CHAT, CHAT, CHAT | {"model": "unknown"}):
        async with served.session.post(served.url + "/v1/chat/completions", json=body) as response:
            await response.read()
    texts = []
    for url in (served.url, replicas[0].url):
        async with served.session.get(url + "/metrics") as response:
            texts.append(await response.text())
    return "".join(texts)


def labels_by_metric(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def metric_and_labels(query: str, legend: str) -> tuple[str, set[str]]:
    """The one metric in `query`, and all labels in it and in `legend`."""
    labels = set(re.findall(r"\{\{(\w+)\}\}", legend))
    for group in re.findall(r"by \(([^)]*)\)", query):
        labels |= {label.strip() for label in group.split(",")}
    for selector in re.findall(r"\{([^}]*)\}", query):
        labels |= set(re.findall(r"(\w+)\s*[=!]", selector))
    rest = re.sub(r"by \([^)]*\)|\{[^}]*\}|\[[^\]]*\]", "", query)
    (metric,) = re.findall(r"[A-Za-z_:][\w:]*(?![\w:]*\s*\()", rest)
    return metric, labels


async def test_each_metric_and_label_exists() -> None:
    async with before(QUICK, BUSY, routing="round_robin") as (served, replicas):
        exported = labels_by_metric(await export(served, replicas))
    # Flink's reporter exports these.
    exported |= {f"{PREFIX}_{gauge}": set() for gauge in SCALING_GAUGES}
    for query, legend in QUERIES:
        metric, labels = metric_and_labels(query, legend)
        assert metric in exported, f"{query}: nothing exports {metric}"
        assert labels <= exported[metric] | SCRAPED, f"{query}: {metric} has no {labels - exported[metric]}"


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[tuple[Path, str]]:
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
            yield targets, f"http://{address}"
        finally:
            process.terminate()
            process.wait(60)


async def test_a_real_prometheus_answers_each_query(prometheus: tuple[Path, str]) -> None:
    targets, url = prometheus
    async with (
        before(QUICK, BUSY, routing="round_robin") as (served, replicas),
        aiohttp.ClientSession() as http,
    ):
        scraped = [served.url, *(replica.url for replica in replicas)]
        targets.write_text(json.dumps([{"targets": [one.removeprefix("http://") for one in scraped]}]))
        left = [(query, legend) for query, legend in QUERIES if PREFIX not in query]
        while left:
            await export(served, replicas)
            query, legend = left[0]
            try:
                async with http.get(url + "/api/v1/query", params={"query": query}) as response:
                    answer = await response.json()
            except aiohttp.ClientError:
                # It has not started yet.
                await asyncio.sleep(0.1)
                continue
            assert answer["status"] == "success", answer
            found = answer["data"]["result"]
            # A rate needs two scrapes; until then there is no answer, or none but NaN.
            if not found or any(one["value"][1] == "NaN" for one in found):
                await asyncio.sleep(0.1)
                continue
            for label in re.findall(r"\{\{(\w+)\}\}", legend):
                assert all(label in one["metric"] for one in found), f"{query} has no {label}"
            del left[0]


def test_all_queries_are_valid(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool, which checks queries: it comes with Prometheus (apt install prometheus)")
    rules = [{"record": f"panel:{number}", "expr": query} for number, (query, _) in enumerate(QUERIES)]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", "rules.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(QUERIES)} rules found" in done.stdout


def test_the_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
