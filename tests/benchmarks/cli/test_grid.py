"""`python -m benchmarks grid` from the command line."""

from __future__ import annotations

from pathlib import Path

import orjson
from benchmarks.__main__ import application
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


def test_running_servers_are_measured(tmp_path: Path) -> None:
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
