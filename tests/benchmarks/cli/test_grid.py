"""`python -m benchmarks grid` from the command line."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from benchmarks.__main__ import application
from benchmarks.interplay.measurement import InterplayMeasurement
from tests.benchmarks.grid.scripted_session import ScriptedPipelines
from typer.testing import CliRunner, Result

from forebay.errors import SettingError
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

SMALL = ("--no-stream", "--requests", "6", "--prompt-tokens", "4", "--mean-tokens", "4", "--limit", "16")


def run(*args: str) -> Result:
    result = CliRunner().invoke(application(), ["grid", *args])
    if isinstance(result.exception, SettingError):
        raise result.exception
    return result


def test_servers_that_run_are_measured(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": at * 7, "input_length": 9, "output_length": 9, "hash_ids": [1]} for at in range(20)
    ]
    trace.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    script = ReplicaScript(delay=Fixed(0.001))
    with ReplicaThread(script) as first, ReplicaThread(script) as second:
        result = run(
            *("--url", first.url, "--url", second.url, "--replicas", "1", "--replicas", "2", *SMALL),
            *("--trace", str(trace), "--tail", "heavy", "--json", str(tmp_path / "grid.json")),
        )
    document = orjson.loads((tmp_path / "grid.json").read_bytes())
    assert [each["parallelism"]["replicas"] for each in document["engines"]] == [1, 2]
    assert [cell["arrival"] for cell in document["cells"][:4]] == ["constant", "poisson", "bursts", "trace"]
    assert document["provenance"]["command"].startswith("python -m benchmarks")
    assert document["provenance"]["data_sha256"]
    assert "bursts" in result.stdout
    assert result.exit_code == (0 if document["valid"] else 1)


FEW = ("--events", "12", "--prompt-tokens", "4", "--mean-tokens", "4", "--limit", "16")


def interplay(*args: str) -> Result:
    result = CliRunner().invoke(application(), ["interplay", *args])
    if isinstance(result.exception, SettingError):
        raise result.exception
    return result


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> ScriptedPipelines:
    """Replaces Flink's pipelines."""
    scripted = ScriptedPipelines()
    whole = InterplayMeasurement.__init__

    def init(self: InterplayMeasurement, *args: object, **options: object) -> None:
        whole(self, *args, **{**options, "open": scripted})  # type: ignore[arg-type]

    monkeypatch.setattr(InterplayMeasurement, "__init__", init)
    return scripted


@pytest.mark.long
def test_a_running_server_is_measured_and_its_kv_cache_is_not_changed(
    tmp_path: Path, pipelines: ScriptedPipelines
) -> None:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.001))) as replica:
        result = interplay("--url", replica.url, *FEW, "--json", str(tmp_path / "found.json"))
    document = orjson.loads((tmp_path / "found.json").read_bytes())
    factors = {cell["factor"] for cell in document["cells"]}
    assert factors == {
        "base",
        "capacity",
        "checkpoint",
        "ordering",
        "prefix",
        "subtasks",
        "windows",
        "bundle",
    }
    assert "capacity: 64" in " ".join(result.stdout.split())
    assert result.exit_code == (0 if document["valid"] else 1)
