"""The traces of a real run, as a collector gets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.harness.homes import new_home
from tests.harness.otlp import TRACES, collecting

from forebay.errors import SettingError
from forebay.pipeline.load import parse_spec
from forebay.pipeline.plan import Plan
from forebay.pipeline.preflight import check
from forebay.settings import Settings
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

SPANS = ["answer", "chat m", "event", "read", "route", "wait"]
PIPELINE: dict[str, Any] = {
    "name": "reviews",
    "source": {"type": "jsonl", "path": "in.jsonl"},
    "prompt": "{{ event.text }}",
    "sink": {"type": "jsonl", "path": "out"},
    "opentelemetry": True,
}


@pytest.mark.flink
@pytest.mark.slow
def test_each_event_of_a_run_is_a_trace(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(json.dumps(PIPELINE))
    lines = [json.dumps({"text": f"text {n}"}) for n in range(3)]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, "not JSON", ""]))
    replica = ReplicaThread(ReplicaScript(models=("m",), delay=Fixed(0.0)))
    with collecting() as collector, replica:
        home = new_home(tmp_path / "home")
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "FOREBAY_HOME": str(home)}
        done = subprocess.run(
            [sys.executable, "-m", "forebay", "run", "p.yaml", "--engine", replica.url],
            cwd=tmp_path,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    traces = defaultdict(list)
    for span in collector.spans:
        traces[span.trace_id].append(span.name)
    assert sorted(map(sorted, traces.values())) == [*([SPANS] * 3), ["event"]]
    (resource,) = ExportTraceServiceRequest.FromString(collector.got[TRACES]).resource_spans
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "reviews"


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_BSP_MAX_QUEUE_SIZE", "many")]
)
def test_invalid_variable_is_rejected_before_the_start(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").touch()
    plan = Plan(parse_spec(PIPELINE, base=tmp_path), Settings(home=tmp_path / "home", python=Path()))
    check(plan)
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match=f"{name}: expected .*, found '{value}'"):
        check(plan)
