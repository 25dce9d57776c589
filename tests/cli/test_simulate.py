"""`forebay simulate` and `python -m benchmarks routing` from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import typer
from benchmarks.__main__ import application as benchmarks
from tests.cli.commands import refusal
from typer.testing import CliRunner

from forebay.cli import application
from forebay.errors import SettingError

DATA = Path(__file__).parents[3] / "shared" / "data"
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{at // 10:02}.{at % 10},{500 + 37 * at % 3000},{5 + at % 30}\n" for at in range(200)
)


def run(*args: str, status: int = 0, app: Callable[[], typer.Typer] = application) -> str:
    result = CliRunner().invoke(app(), args, catch_exceptions=True)
    if isinstance(result.exception, SettingError):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def test_made_up_requests_give_the_same_figures_each_time(tmp_path: Path) -> None:
    args = ["simulate", "--requests", "300", "--rate", "20", "--replicas", "2", "--seed", "4"]
    args += ["--policy", "expected_ttft", "--policy", "random"]
    documents = []
    for name in ("a", "b"):
        path = tmp_path / name
        run(*args, "--json", str(path))
        document = orjson.loads(path.read_bytes())
        for one in document["policies"].values():
            assert one.pop("simulated_requests_per_s") > 0
        documents.append(document)
    assert documents[0] == documents[1]
    assert documents[0]["policies"]["expected_ttft"]["answered"] == 300


def test_settings_that_are_wrong_are_reported(tmp_path: Path) -> None:
    for option, value, text in (
        ("--policy", "best", "expected one of random"),
        ("--load", "0", "--load"),
        ("--engine", "h100", "engine: expected one of"),
        ("--rate", "0", "arrivals"),
    ):
        assert text in refusal("simulate", option, value)
    bad = tmp_path / "bad.csv"
    bad.write_text(TRACE + "2023-11-16,1\n")
    with pytest.raises(SettingError, match="line 202: expected 3 columns"):
        run("routing", "--trace", str(bad), app=benchmarks)


@pytest.mark.heavy
def test_policies_are_compared_on_a_trace(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    trace.write_text(TRACE)
    args = ["routing", "--trace", str(trace), "--replicas", "2", "--load", "0.6", "--json", str(out)]
    run(*args, "--policy", "least_requests", app=benchmarks)
    assert [one["load"] for one in orjson.loads(out.read_bytes())["policies"]["least_requests"]] == [0.6]


@pytest.mark.heavy
def test_a_measured_engine_is_calibrated(tmp_path: Path) -> None:
    measured = DATA / "vllm_measured" / "Llama-3.1-8B.requests.jsonl"
    if not measured.exists():
        pytest.skip(f"{measured} is not there")
    out = tmp_path / "out.json"
    assert "ttft_mean_s" in run("simulate", "calibrate", str(measured), "--json", str(out))
    document = orjson.loads(out.read_bytes())
    assert document["worst_error"] < 0.1
    assert document["step_time"]["step_s"] > 0


def test_a_trace_is_served_at_a_share_of_capacity(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    output = run("simulate", "--trace", str(trace), "--replicas", "1", "--load", "0.5")
    assert "expected_ttft" in output
