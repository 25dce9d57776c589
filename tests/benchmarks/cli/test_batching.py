"""`python -m benchmarks batching` from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from benchmarks.__main__ import application
from benchmarks.batching.systems import Systems
from benchmarks.batching.transformers import TransformersWorker, WorkerOptions
from typer.testing import CliRunner, Result

from forebay.bench.report.document import read_report
from forebay.errors import SettingError
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

SCRIPTED = Path(__file__).parents[1] / "batching" / "scripted_worker.py"


def run(*args: str) -> Result:
    result = CliRunner().invoke(application(), ["batching", *args])
    if isinstance(result.exception, SettingError):
        raise result.exception
    return result


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replaces transformers with the scripted worker."""

    @contextmanager
    def transformers(systems: Systems, attention: str) -> Iterator[TransformersWorker]:
        options = WorkerOptions(
            python=Path(sys.executable),
            model=str(tmp_path / "batches"),
            dtype="float32",
            attention=attention,
            script=SCRIPTED,
        )
        with TransformersWorker(options, systems.settings) as worker:
            yield worker

    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    monkeypatch.setattr(Systems, "transformers", transformers)


@pytest.mark.usefixtures("scripted")
def test_running_server_is_compared_with_transformers(tmp_path: Path) -> None:
    report, requests = tmp_path / "report.json", tmp_path / "all.json"
    with ReplicaThread(ReplicaScript(delay=Fixed(0.002))) as replica:
        result = run(
            *("--url", replica.url, "--scale", "0.005", "--limit", "4", "--limit", "8", "--batch-size", "2"),
            *("--json", str(report), "--requests", str(requests)),
        )
    document = orjson.loads(report.read_bytes())
    assert set(document["throughput"]) == {"4", "8"}
    assert document["ratio"]["8"] > 0
    assert set(document["latency"]) == {"1", "4"}
    assert document["provenance"]["command"].startswith("python -m benchmarks")
    assert document["held_equal"]["model"] == "smollm2-135m-instruct"
    runs = read_report(requests).runs
    assert len(runs) == 8
    assert {len(one.run.records) for one in runs} == {5}
    assert "transformers, static batches of 2" in {one.run.provenance["target"] for one in runs}
    assert "continuous over static" in result.stdout
    assert "latency, s" in result.stdout
    assert result.exit_code == (0 if document["valid"] else 1)
