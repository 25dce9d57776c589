"""`forebay bench report` and `forebay bench compare` on files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from tests.bench.report.made_runs import VALID, invalid, made_run, measured
from typer.testing import CliRunner, Result

from forebay.bench.report.document import Report, requests_path, write_report
from forebay.cli import application
from forebay.errors import SettingError

Forebay = Callable[..., Result]


@pytest.fixture
def forebay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forebay:
    """Run a command in a folder with recorded runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_report(Path("a.json"), Report("serve", (measured(made_run(requests=200), verdict=VALID),)))
    write_report(
        Path("b.json"),
        Report("serve", (measured(made_run(requests=200, seed=1, slower=0.7), verdict=VALID),)),
    )
    write_report(
        Path("bad.json"), Report("serve", (measured(made_run(requests=200), verdict=invalid("late")),))
    )

    def run(*words: str) -> Result:
        return CliRunner().invoke(application(), ["bench", *words])

    return run


def ok(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def test_a_report_in_the_terminal_fits_into_80_columns(forebay: Forebay) -> None:
    found = ok(forebay("report", "bad.json")).stdout
    table = [line for line in found.splitlines() if not line.startswith("  ") and "requests/s;" not in line]
    assert max(map(len, table)) <= 80
    assert "10 requests/s\nINVALID\n" in found
    assert "  late\n" in found
    assert "TTFT, response, ms" in found


def test_a_report_as_a_document(forebay: Forebay) -> None:
    (found,) = orjson.loads(ok(forebay("report", "a.json", "--json")).stdout)["runs"]
    assert found["figures"]["offered"] == 200


@pytest.mark.parametrize(("form", "key"), [("vllm", "ttfts"), ("br", "scenario"), ("aiperf", "metadata")])
def test_forms_of_other_tools(forebay: Forebay, form: str, key: str) -> None:
    printed = ok(forebay("report", "a.json", "--format", form)).stdout
    ok(forebay("report", "a.json", "--format", form, "--output", "out"))
    assert Path("out").read_text() == printed
    documents = printed.splitlines() if form == "aiperf" else [printed]
    assert len(documents) == (200 if form == "aiperf" else 1)
    assert all(key in orjson.loads(one) for one in documents)


def test_one_run_of_several(forebay: Forebay) -> None:
    runs = tuple(measured(made_run(requests=n)) for n in (3, 5))
    write_report(Path("two.json"), Report("serve", runs))
    found = orjson.loads(ok(forebay("report", "two.json", "--format", "vllm", "--run", "2")).stdout)
    assert found["num_prompts"] == 5
    shown = ok(forebay("report", "two.json", "--run", "2")).stdout
    assert "5 requests answered" in shown
    assert "3 requests answered" not in shown
    assert "--run 3: two.json has only 2" in str(
        forebay("report", "two.json", "--format", "vllm", "--run", "3").exception
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "none.json"), "none.json cannot be read"),
        (("report", "a.json", "--html", "none/a.html"), "--html: there is no folder none"),
        (("report", "a.json", "--format", "vllm", "--output", "none/a"), "--output: there is no folder none"),
        (("report", "a.json", "--html", "a.json"), "--html: a.json is also RUN.json"),
        (
            ("report", "a.json", "--format", "aiperf", "--output", "a.requests.jsonl"),
            "--output: a.requests.jsonl is also the requests of RUN.json",
        ),
        (("compare", "a.json", "b.json", "--json", "b.json"), "--json: b.json is also B.json"),
        (("compare", "a.json", "bad.json"), "10 requests/s, B: INVALID: late"),
        (("compare", "a.json", "b.json", "--html", "none/a.html"), "--html: there is no folder none"),
        (("compare", "a.json", "b.json", "--json", "none/a"), "--json: there is no folder none"),
    ],
)
def test_impossible_requests_are_reported(forebay: Forebay, words: tuple[str, ...], said: str) -> None:
    result = forebay(*words)
    assert isinstance(result.exception, SettingError)
    assert said in str(result.exception)


@pytest.mark.heavy
def test_a_comparison_in_the_terminal_fits_into_80_columns(forebay: Forebay) -> None:
    kind = "a schedule with a name that is longer than the terminal is wide, so that it is not a column title"
    for name, seed, slower in (("a.json", 0, 1.0), ("b.json", 1, 50.0)):
        run = made_run(requests=1200, seed=seed, slower=slower, asked={"schedule": {"kind": kind}})
        write_report(Path(name), Report("serve", (measured(run, verdict=VALID),)))
    result = ok(forebay("compare", "a.json", "b.json"))
    title, *table = result.stdout.splitlines()
    assert title == f"at {kind}"
    assert max(map(len, table)) <= 80
    assert "…" not in result.stdout
    assert "longest gap mean" in result.stdout
    assert "TTFT mean" in result.stdout
    assert "worse" in result.stdout
    assert "One run each" in result.stderr


@pytest.mark.heavy
def test_a_comparison_as_document_and_page(forebay: Forebay) -> None:
    found = orjson.loads(ok(forebay("compare", "a.json", "b.json", "--json")).stdout)
    assert found["obstacles"] == []
    assert ok(forebay("compare", "a.json", "b.json", "--html", "c.html", "--json", "c.json")).stdout != ""
    assert orjson.loads(Path("c.json").read_bytes()) == found
    assert "Comparison" in Path("c.html").read_text()


def test_a_form_needs_the_requests(forebay: Forebay) -> None:
    requests_path(Path("a.json")).unlink()
    assert "the file with the requests of a.json is missing" in str(
        forebay("report", "a.json", "--format", "br").exception
    )


@pytest.mark.heavy
def test_doubtful_comparisons_are_reported(forebay: Forebay) -> None:
    result = ok(forebay("compare", "a.json", "bad.json", "--anyway"))
    assert "not comparable: 10 requests/s, B: INVALID: late" in result.stderr


def test_a_page(forebay: Forebay) -> None:
    assert ok(forebay("report", "a.json", "--html", "a.html")).stdout == ""
    assert Path("a.html").read_text().startswith("<!DOCTYPE html>")
