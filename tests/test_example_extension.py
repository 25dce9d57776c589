"""The installed package of `examples/extension`: its connectors, application and policy run."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until

pytestmark = pytest.mark.heavy

EXAMPLE = Path(__file__).parents[1] / "examples" / "extension"
LINES = 120


@pytest.fixture
def environment(example_extension: Path, home: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(example_extension), "FOREBAY_HOME": str(home), "COLUMNS": "200"}


@pytest.fixture
def replica() -> Iterator[ReplicaThread]:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.1))) as running:
        yield running


def write_logs(folder: Path) -> set[str]:
    (folder / "logs").mkdir()
    lines = [
        "--- rotated ---" if number % 10 == 9 else f"2026-03-02T08:30:{number % 60:02} ERROR disk {number}"
        for number in range(LINES)
    ]
    (folder / "logs" / "1.log").write_text("\n".join(lines[:50]) + "\n")
    (folder / "logs" / "2.log").write_text("\n".join(lines[50:]) + "\n")
    return {line.rpartition(" ERROR ")[2] for line in lines if "ERROR" in line}


def pipeline(folder: Path, capacity: int = 4) -> Path:
    file = folder / "p.yaml"
    document = {
        "name": "logs",
        "source": {"type": "log_files", "path": "logs"},
        "prompt": "What is wrong? {{ text }}",
        "routing": "sticky",
        "capacity": capacity,
        "sink": {"type": "csv_files", "path": "rows", "columns": ["text", "level"]},
        "checkpoint": {"interval_s": 0.3},
    }
    file.write_text(json.dumps(document))
    return file


def rows(folder: Path) -> list[list[str]]:
    found = []
    for part in (folder / "rows").glob("part-*.csv"):
        with part.open(newline="") as file:
            found += list(csv.reader(file))
    return found


def run(environment: dict[str, str], folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "forebay", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
@pytest.mark.flink
def test_it_is_exactly_once_over_a_kill_and_its_source_settings_are_bound(
    tmp_path: Path, environment: dict[str, str], replica: ReplicaThread
) -> None:
    expected = write_logs(tmp_path)
    words = ("run", str(pipeline(tmp_path)), "--engine", replica.url)
    first = run(environment, tmp_path, *words)
    try:
        wait_until(lambda: first.poll() is not None or len(rows(tmp_path)) >= 10)
        assert first.poll() is None, first.communicate()[1]
    finally:
        first.kill()
        first.communicate()
    assert len(rows(tmp_path)) < len(expected)
    without = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    for where, more, refusal in (
        (
            environment,
            ("--set", "source.limit=7"),
            r"source\.limit: expected None, as in the checkpoint, found 7",
        ),
        (without, (), "source: type: expected one of jsonl, csv"),
    ):
        refused = run(where, tmp_path, *words, *more)
        _, message = refused.communicate(timeout=200)
        assert refused.returncode == 2
        assert re.search(refusal, message)
    _, message = run(environment, tmp_path, *words).communicate(timeout=400)
    found = rows(tmp_path)
    assert sorted(text for _, _, _, text, _ in found) == sorted(expected), message
    assert {level for *_, level in found} == {"ERROR"}
    assert len({id for id, *_ in found}) == len(expected)
    letters = [
        json.loads(line)
        for part in (tmp_path / "rows-dead-letters").glob("part-*.jsonl")
        for line in part.read_text().splitlines()
    ]
    assert {(letter["cause"], letter["input"]) for letter in letters} == {
        ("malformed_record", "--- rotated ---")
    }
    assert len(letters) == LINES - len(expected)


@pytest.mark.slow
@pytest.mark.flink
def test_its_application_runs_by_its_name(
    tmp_path: Path, environment: dict[str, str], replica: ReplicaThread
) -> None:
    posts = [{"user": f"u{number % 3}", "text": f"text {number}"} for number in range(30)]
    (tmp_path / "posts.jsonl").write_text("".join(json.dumps(post) + "\n" for post in posts))
    words = ("--source", "posts.jsonl", "--set", "application.every=5", "--engine", replica.url)
    _, text = run(environment, tmp_path, "run", "digest", *words).communicate(timeout=400)
    results = [
        json.loads(line)
        for part in (tmp_path / "out" / "digest" / "results").glob("part-*.jsonl")
        for line in part.read_text().splitlines()
    ]
    assert sorted((result["key"], result["answer"]["texts"]) for result in results) == sorted(
        (f"u{user}", 5) for user in range(3) for _ in range(2)
    ), text


def test_its_names_are_listed_and_its_policy_is_simulated(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    listed, _ = run(environment, tmp_path, "run", "--help").communicate(timeout=200)
    assert "digest (forebay-example 1.0)" in listed
    words = ("simulate", "--requests", "300", "--policy", "sticky", "--json")
    out, text = run(environment, tmp_path, *words).communicate(timeout=200)
    assert json.loads(out)["policies"]["sticky"]["goodput"] > 0, text


@pytest.mark.long
def test_it_passes_mypy_strict(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = true\n[mypy-pyflink.*]\nignore_missing_imports = true\n"
    )
    words = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, "-p", "forebay_example"],
        cwd=EXAMPLE / "src",
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
