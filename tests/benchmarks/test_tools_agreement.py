"""The comparison with other tools: parsing their output, and criteria for agreement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.timed_server import MODEL, Step, TimedAnswer, timed_process
from benchmarks.tools_agreement import (
    OURS,
    Server,
    Shape,
    ToolFigures,
    check,
    compare,
    document,
    forebay_bench,
    measure_agreement,
    read_aiperf,
    read_guidellm,
    read_vllm,
)

from forebay.errors import LaunchError

SHAPE = Shape(requests=4, concurrency=1, prompt_tokens=8, output_tokens=5)
SAME = ToolFigures(100.0, 20.0, 50.0, 4, 32, 20)


def test_the_figures_that_each_tool_writes() -> None:
    expected = ToolFigures(101.5, 20.5, 48.0, 4, 33, 20)
    assert (
        read_vllm(
            {
                "mean_ttft_ms": 101.5,
                "mean_tpot_ms": 20.5,
                "output_throughput": 48.0,
                "completed": 4,
                "total_input_tokens": 33,
                "total_output_tokens": 20,
            }
        )
        == expected
    )
    averages = {
        "time_to_first_token": 101.5,
        "inter_token_latency": 20.5,
        "output_token_throughput": 48.0,
        "request_count": 4.0,
        "output_sequence_length": 5.0,
        "usage_prompt_tokens": 8.25,
    }
    assert read_aiperf({name: {"avg": value} for name, value in averages.items()}) == expected
    means = {
        "time_to_first_token_ms": 101.5,
        "inter_token_latency_ms": 20.5,
        "output_tokens_per_second": 48.0,
        "output_token_count": 5.0,
        "prompt_token_count": 8.25,
    }
    metrics = {name: {"successful": {"mean": value}} for name, value in means.items()}
    totals = {"request_totals": {"successful": 4}}
    assert read_guidellm({"benchmarks": [{"metrics": {**metrics, **totals}}]}) == expected


def test_two_tools_must_agree_in_every_figure() -> None:
    near, far = replace(SAME, ttft_ms=102.9), replace(SAME, tpot_ms=20.7)
    found = {OURS: [SAME, SAME], "near": [near, near], "same": [SAME, SAME], "far": [far, far]}
    both = document(found, SHAPE)
    assert (both["agreeing"], both["passed"]) == (["near", "same"], True)
    assert not document({OURS: [SAME], "near": [near], "far": [far]}, SHAPE)["passed"]


def test_a_difference_is_that_of_the_middle_turn() -> None:
    ours = [SAME, replace(SAME, ttft_ms=200.0), SAME]
    # The engine was half as fast in the second turn, and something disturbed the last of theirs.
    theirs = [replace(SAME, ttft_ms=102.0), replace(SAME, ttft_ms=202.0), replace(SAME, ttft_ms=900.0)]
    (ttft, *_) = compare({OURS: ours, "other": theirs})
    assert (ttft.tool, ttft.figure, ttft.ours, ttft.theirs) == ("other", "ttft_ms", 100.0, 202.0)
    assert (ttft.least, ttft.difference, ttft.most) == pytest.approx((0.01, 0.02, 8.0))
    assert ttft.agrees


def test_a_tool_that_asked_for_something_else_is_not_compared() -> None:
    check("other", SAME, SHAPE)
    twenty = replace(SHAPE, requests=20)
    check("other", ToolFigures(100.0, 20.0, 50.0, 19, 19 * 8, 19 * 5), twenty)
    for wrong in (
        replace(SAME, output_tokens=19),
        replace(SAME, prompt_tokens=30),
        ToolFigures(100.0, 20.0, 50.0, 3, 24, 15),
        ToolFigures(100.0, 20.0, 50.0, 5, 40, 25),
    ):
        with pytest.raises(LaunchError, match=r"other: .* were asked for"):
            check("other", wrong, SHAPE)


def test_our_own_turn_is_measured_and_must_be_valid(tmp_path: Path) -> None:
    good = TimedAnswer(tuple(Step(0.002) for _ in range(5)))
    short = TimedAnswer(good.steps[1:])
    with timed_process([good] * 4 + [short] * 4) as url:
        server = Server(url, MODEL, tmp_path)
        found = forebay_bench(SHAPE, server, 0, tmp_path)
        assert (found.requests, found.output_tokens) == (4, 20)
        assert found.ttft_ms >= 2
        with pytest.raises(LaunchError, match="our own run is INVALID"):
            forebay_bench(SHAPE, server, 0, tmp_path)


def test_each_turn_begins_with_another_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    order: list[tuple[str, int]] = []

    def tool(name: str):  # type: ignore[no-untyped-def]
        def run(shape: Shape, server: Server, seed: int, folder: Path) -> ToolFigures:
            order.append((name, seed))
            return SAME

        return run

    monkeypatch.setattr("benchmarks.tools_agreement.forebay_bench", tool(OURS))
    server = Server("http://127.0.0.1:9", MODEL, tmp_path)
    found = measure_agreement({"a": tool("a"), "b": tool("b")}, server, SHAPE, turns=3, seed=7)
    assert order == [
        (OURS, 10),
        *[(OURS, 7), ("a", 7), ("b", 7)],
        *[("a", 8), ("b", 8), (OURS, 8)],
        *[("b", 9), (OURS, 9), ("a", 9)],
    ]
    assert found["passed"]
