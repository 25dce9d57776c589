"""`python -m benchmarks grid` from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.__main__ import application
from benchmarks.grid.measurement import Cell, Measurement
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


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--model", "not there"], "'not there' is not a directory"),
        (["--model", "random:gpt-9"], "expected one of random:opt-125m"),
        (["--replicas", "many"], "--replicas: expected REPLICAS or REPLICASxCORES"),
        (["--replicas", "999x1"], "found '999x1'"),
        (["--replicas", "60x60"], "there are .* cores"),
        (["--arrival", "sometimes"], "--arrival: expected constant"),
        (["--tail", "fat"], "--tail: expected exact"),
        (["--trace", "nowhere.jsonl"], "trace: nowhere.jsonl cannot be read"),
        (["--arrival", "trace"], "--arrival trace and --trace FILE"),
        (["--no-serving", "--no-stream"], "the engine, the stream, or both"),
        (["--rate", "0"], "--rate: expected requests per second"),
        (["--plot", "nowhere/here.png"], "--plot: there is no folder nowhere"),
        (["--url", "http://127.0.0.1:9", "--replicas", "2"], "expected 1 to 1, a --url for each"),
        (["--url", "http://127.0.0.1:9", "--cores", "0"], "are for an engine that is started here"),
        (["--url", "http://127.0.0.1:9", "--model", "a", "--model", "b"], "at most one --model"),
    ],
)
def test_what_is_asked_wrongly_is_told_before_anything_starts(args: list[str], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        run(*args)


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


def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = run("--url", "http://127.0.0.1:9", *SMALL, "--json", str(tmp_path / "grid.json"))
    document = orjson.loads((tmp_path / "grid.json").read_bytes())
    assert "127.0.0.1:9" in document["engines"][0]["error"]
    assert document["cells"] == []
    assert "FAILED" in result.stdout
    assert result.exit_code == 1


def test_what_was_measured_before_ctrl_c_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Measurement._served
    measured = []

    def served(self: Measurement, *args: Any) -> Cell:
        if measured:
            raise KeyboardInterrupt
        measured.append(1)
        return whole(self, *args)

    monkeypatch.setattr(Measurement, "_served", served)
    with ReplicaThread(ReplicaScript(delay=Fixed(0.001))) as replica:
        result = run("--url", replica.url, *SMALL, "--json", str(tmp_path / "grid.json"))
    document = orjson.loads((tmp_path / "grid.json").read_bytes())
    assert (document["complete"], document["valid"]) == (False, False)
    assert len(document["cells"]) == 1
    assert result.exit_code == 130
