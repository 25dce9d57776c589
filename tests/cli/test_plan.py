"""`forebay plan`: a known example, a workload, and wrong options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.cli.commands import refusal
from tests.planning.model_configs import MISTRAL_7B
from tests.planning.test_model_config import LLAMA
from typer.testing import CliRunner

from forebay.cli import application


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_bytes(orjson.dumps(LLAMA))
    return path


def planned(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(application(), ["plan", *words, "--json", "-"], catch_exceptions=False)
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_known_example(model: Path) -> None:
    found = planned(str(model), "--accelerator", "40GB", "--context", "8192")
    assert found["memory"]["requests_at_most"] == 24
    assert found["workload"] is None
    shown = CliRunner().invoke(application(), ["plan", str(model), "--accelerator", "40GB"])
    assert "24 with all of the memory" in shown.stdout


@pytest.mark.heavy
def test_a_workload_with_a_price(model: Path) -> None:
    found = planned(
        str(model), "--accelerator", "h100", "--rate", "20", "--prompt-tokens", "500", "--output-tokens",
        "50-150", "--price", "3",
    )  # fmt: skip
    work, cost = found["workload"], found["cost"]
    assert found["split"] is None, "no network was given"
    assert work["replicas"] >= 1
    assert work["goodput"] >= 0.99
    assert cost["per_hour"] == 3 * work["replicas"]
    per_hour = cost["per_1000_requests"] * work["offered_per_s"] * 3.6
    assert per_hour == pytest.approx(cost["per_hour"])


@pytest.mark.heavy
def test_two_pools_are_planned_if_the_network_is_given(model: Path, tmp_path: Path) -> None:
    words = (str(model), "--rate", "20", "--prompt-tokens", "500", "--output-tokens", "50-150")
    more = (*words, "--transfer-bandwidth", "12.5", "--price", "3")
    file = tmp_path / "plan.json"
    shown = CliRunner().invoke(application(), ["plan", *more, "--json", str(file)], catch_exceptions=False)
    split = json.loads(file.read_text())["split"]
    assert split["replicas"] >= 2
    assert split["per_hour"] == 3 * split["replicas"]
    assert not split["pays"], "one mixed replica is enough"
    assert "not worth it: it takes" in shown.stdout


def test_windows_reserve_two_steps_with_asynchronous_scheduling(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(orjson.dumps(MISTRAL_7B))
    words = (str(path), "--kv-cache-gib", "20", "--context", "8192")
    found = planned(*words)
    assert (found["memory"]["requests"], found["requests_with_async_scheduling"]) == (26, 19)
    assert planned(*words, "--async-scheduling")["memory"]["requests"] == 19
    assert planned(*words, "--max-num-batched-tokens", "4096")["memory"]["requests"] == 19
    shown = CliRunner().invoke(application(), ["plan", *words])
    assert "19: vLLM's default on GPUs" in shown.stdout
    shown = CliRunner().invoke(application(), ["plan", *words, "--async-scheduling"])
    assert "default on GPUs" not in shown.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--accelerator", "abacus"], "--accelerator"),
        (["--rate", "0"], "--rate"),
        (["--rate", "5", "--trace", "x"], "--trace and --rate"),
        (["--price", "-1"], "--price"),
        (["--memory-share", "1.5"], "--memory-share"),
        (["--rate", "5", "--prompt-tokens", "many"], "lengths"),
        (["--kv-cache-type", "int2"], "--kv-cache-type: expected one of fp8"),
        (["--ttft", "2"], "--ttft: needs a workload"),
        (["--price", "3"], "--price: needs a workload"),
        (["--rate", "5", "--goal", "2"], "--goal"),
    ],
)
def test_wrong_options_are_named(model: Path, words: list[str], expected: str) -> None:
    assert expected in refusal("plan", str(model), *words)


def test_the_kv_cache_may_be_given(model: Path) -> None:
    found = planned(str(model), "--kv-cache-gib", "2", "--context", "8192")
    assert found["memory"]["requests"] == 2
