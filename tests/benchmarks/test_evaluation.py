"""The pages of docs/results match the recorded files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.evaluation import PAGES, batching, grid
from benchmarks.evaluation.page import (
    Page,
    Records,
    Rendered,
    changed,
    evaluation,
    invalid,
    table,
    write,
)

RESULTS = Path(__file__).parents[2] / "docs" / "results"
MARKER = "<!-- table: {} -->\n{}<!-- end -->\n"


def test_every_table_and_plot_is_as_the_recorded_files_give_it() -> None:
    """If this fails, run `python -m benchmarks evaluation`, which regenerates them."""
    files = evaluation(RESULTS, PAGES)
    assert [path.name for path in changed(files)] == []
    pictures = {path.name for path in RESULTS.glob("*.svg")}
    assert pictures == {path.name for path in files if path.suffix == ".svg"}, "a picture that nobody makes"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A front page, one page and its record."""
    (tmp_path / "README.md").write_text(MARKER.format("findings", ""))
    (tmp_path / "one.md").write_text("# One\n" + MARKER.format("numbers", "old\n") + "the rest\n")
    (tmp_path / "one.json").write_bytes(orjson.dumps({"value": 7}))
    return tmp_path


def render(records: Records) -> Rendered:
    value = records["one.json"]["value"]
    return Rendered(
        {"numbers": table(("a", "b"), [(value, None)])},
        finding=f"It is {value}.",
    )


ONE = Page("one", "How many?", ("one.json",), render)


def test_manually_changed_figure_is_detected(folder: Path) -> None:
    write(evaluation(folder, [ONE]))
    page = folder / "one.md"
    page.write_text(page.read_text().replace("| 7 |", "| 8 |"))
    assert changed(evaluation(folder, [ONE])) == [page]


def test_invalid_parts_are_named_with_each_reason_once() -> None:
    document = {"complete": False}
    measured: list[dict[str, Any]] = [
        {"id": "a", "reasons": []},
        {"id": "b", "reasons": {"exact": ["busy; end them, and measure again"], "heavy": ["busy", "late"]}},
    ]
    text = invalid(document, measured, lambda one: str(one["id"]))
    assert text == "The run was ended early: this is what was measured until then.\n\n- b: busy; late\n"
    assert invalid({"complete": True}, measured[:1], lambda _: "") == "Nothing is INVALID.\n"


def test_the_front_page_has_no_invalid_throughput() -> None:
    engine: dict[str, Any] = {
        "model": "default",
        "parallelism": {"replicas": 1, "cores_each": 2},
        "at_once": {"exact": {"output_tokens_per_s": 120.2}, "heavy": {"output_tokens_per_s": 50.0}},
        "reasons": {"heavy": ["busy"]},
    }
    other = {**engine, "reasons": {"exact": ["busy"], "heavy": ["busy"]}}
    assert grid.throughput([{"engines": [engine, other]}]) == (
        "Output tokens/s by lengths, all requests at once: SmolLM2-135M, 1 replica on 2 cores: 120 (exact). "
        "1 of 2 engines are INVALID: they cannot be compared yet."
    )
    assert grid.throughput([{"engines": [other]}]).startswith("No engine's throughput is valid.")


def cell(**values: Any) -> dict[str, Any]:
    return {"requests": 200, "rate_per_s": 0.25, "cdf_s": [0.1 * n for n in range(1, 201)]} | values


def test_batching_tables_bracket_invalid_and_omit_unknown_figures() -> None:
    document = {
        "throughput": {"32": {"static": 100.0, "continuous": 250.0}, "128": {"continuous": 90.4}},
        "latency": {"1": {"static": cell(), "continuous": cell(cdf_s=[1.0, 2.0, 3.0], requests=3)}},
        "reasons": {"static, limit 32": ["late"], "continuous, 1 requests/s": ["late"]},
    }
    assert batching.throughput_table(document)[1] == [
        ["static batching (transformers)", "(100)", None],
        ["continuous batching (vLLM)", "250", "90"],
        ["continuous over static", "(2.5 x)", None],
    ]
    assert table(*batching.latency_table(document)).splitlines()[2:] == [
        "| static batching (transformers) | 0.25 (the study's 1) | 200 | 10.05 | 18.01 | – | 20.00 |",
        "| continuous batching (vLLM) | 0.25 (the study's 1) | 3 | (2.00) | – | – | (3.00) |",
    ]


def test_each_run_of_a_load_is_a_row_and_invalid_ones_are_bracketed() -> None:
    times = {name: {"percentiles": {"50": 0.0125}} for name in ("ttft", "tpot", "token_gap", "e2el")}
    figures = {"requests_per_s": 9.36, "output_tokens_per_s": 1198.0, "total_tokens_per_s": 5992.0}
    run = {
        "figures": figures | {"distributions": times},
        "asked": {"schedule": {"rate_per_s": 10.0}},
        "verdict": {"word": "VALID"},
    }
    rows = batching.loads_table({"runs": [run, run | {"verdict": {"word": "INVALID"}}]})[1]
    cells = ["9.4", "1,198", "5,992", "12.5 ms", "12.5 ms", "12.5 ms", "0.01 s"]
    assert rows == [["10", *cells], ["10", *(f"({cell})" for cell in cells)]]
