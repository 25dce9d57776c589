"""Step times are recovered from the times of requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from forebay.errors import SettingError
from forebay.planning.simulate.calibrate import CalibrationRun, calibrate, read_run, run_figures, simulate_run
from forebay.planning.simulate.engine import LLAMA_8B, QWEN_32B, EngineModel
from forebay.planning.simulate.traces import PoissonArrivals

DATA = Path(__file__).parents[4] / "shared" / "data" / "vllm_measured"


def made_up_run() -> CalibrationRun:
    requests = PoissonArrivals(requests=120, rate_per_s=6.0, seed=4).make()
    empty = np.zeros(len(requests))
    run = CalibrationRun(
        np.array([one.arrived_s for one in requests]),
        empty,
        empty,
        [one.prompt_tokens for one in requests],
        [one.output_tokens for one in requests],
    )
    return simulate_run(LLAMA_8B, run)


@pytest.mark.heavy
def test_known_engine_is_reproduced() -> None:
    found = calibrate(made_up_run(), replace(LLAMA_8B, step_time=QWEN_32B.step_time))
    assert found.worst < 0.1


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "engine"), [("Llama-3.1-8B", LLAMA_8B), ("Qwen3-32B", QWEN_32B)])
def test_measured_engines_are_reproduced_within_ten_percent(name: str, engine: EngineModel) -> None:
    path = DATA / f"{name}.requests.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    run = read_run(path)
    measured, simulated = run_figures(run), run_figures(simulate_run(engine, run))
    for figure, value in measured.items():
        assert simulated[figure] == pytest.approx(value, rel=0.1), figure
    assert calibrate(run, engine).worst < 0.1


def test_a_measured_run_is_read_with_both_its_clocks(tmp_path: Path) -> None:
    rows = [
        {"arrival_time": 1000.5, "queued_ts": 7.6, "first_token_ts": 8.0, "last_token_ts": 9.0},
        {"arrival_time": 1000.0, "queued_ts": 7.0, "first_token_ts": 7.5, "last_token_ts": 9.5},
    ]
    path = tmp_path / "x.requests.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(row | {"input_toks": 10, "output_toks": 3}) for row in rows))
    run = read_run(path)
    assert run.arrived_s.tolist() == [0.0, 0.5]
    assert run.first_token_s.tolist() == pytest.approx([0.5, 1.0])
    assert run.finished_s.tolist() == pytest.approx([2.5, 2.0])


@pytest.mark.parametrize(
    "line",
    [b"{}", b"nonsense", b"[]", b'{"arrival_time": 1, "queued_ts": 1, "first_token_ts": 1}'],
)
def test_a_malformed_line_is_refused_with_its_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "run"
    path.write_bytes(line)
    with pytest.raises(SettingError, match="line 1: expected a JSON object with input_toks"):
        read_run(path)


def test_a_run_of_one_request_shows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(b"")
    with pytest.raises(SettingError, match="holds 0 requests"):
        read_run(path)
    with pytest.raises(SettingError, match="cannot be read"):
        read_run(tmp_path / "none")
