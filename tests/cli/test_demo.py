"""`forebay demo`: refused options, output, and a run on a real Flink."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.commands import refusal

from forebay.cli.demo.plan import DemoSummary, Example, Right, Slice
from forebay.cli.demo.screen import show
from forebay.cli.demo.topics import Outbreak
from forebay.pipeline.snapshot import Snapshot
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

KEY = "sk-2718281828"
SUMMARY = DemoSummary(
    results=10, dead_letters=1, completion_tokens=40, call_p50_s=0.25, call_p99_s=1.0,
    sentiments={"neutral": 2, "negative": 8}, topics={"outage": 10}, causes={"timeout": 1},
    slices=(Slice(0, 2, "food"), Slice(60_000, 8, "outage")),
    examples=(Example("[bold]the \x1b[31mlights\x07 are out " + "x" * 200, "negative, outage"),),
)  # fmt: skip


def shown(summary: DemoSummary) -> str:
    out = StringIO()
    last = Snapshot(4.0, "FINISHED", accepted=11, prompt_tokens=100)
    show(summary, last, "results as JSON lines: /out/demo", Console(file=out, width=160))
    return out.getvalue()


def test_planted_found_and_right_counts_are_reported() -> None:
    planted = Outbreak("outage", 55_000, 110_000)
    found = Outbreak("outage", 60_000, 120_000, events=8, factor=12.2)
    known = replace(SUMMARY, right=Right(9, 10), by_topic={"outage": Right(8, 8), "food": Right(1, 2)})
    text = shown(replace(known, planted=planted, found=found))
    assert "What happened: outage breaks out at 00:01:00.0: 8 posts in 60.0 s, 12 times as many" in text
    assert "Planted: outage, from 00:00:55.0 on, for 55.0 s. The model found it and named it." in text
    assert "Right topics: 9 of 10 (90%)" in text
    rows = [line.replace("│", " ").split() for line in text.splitlines() if "%" in line]
    assert ["outage", "8", "100%"] in [row[:3] for row in rows]
    assert ["food", "2", "50%"] in [row[:3] for row in rows]
    for other in (None, replace(found, topic="food")):
        assert "The model missed it." in shown(replace(known, planted=planted, found=other))
    assert "nothing broke out" in shown(replace(known, planted=planted, found=None))


def test_external_text_cannot_control_the_terminal() -> None:
    text = shown(SUMMARY)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]the" in text
    assert "x" * 100 not in text


@pytest.mark.parametrize("words", [["--model", "m"], ["--api-key-env", "KEY"]])
def test_model_and_key_need_an_engine(words: list[str]) -> None:
    assert "only allowed with --engine" in refusal("demo", *words)


def test_literal_key_is_rejected_and_not_shown(tmp_path: Path) -> None:
    words = ["--engine", "http://h:1", "--api-key-env", KEY, "--out", str(tmp_path / "out")]
    assert KEY not in refusal("demo", *words)


@pytest.mark.long
@pytest.mark.flink
def test_a_demo_with_one_of_two_models_and_a_key(home: Path, tmp_path: Path) -> None:
    with ReplicaThread(ReplicaScript(models=("a", "b"), delay=Fixed(0.01), api_key=KEY)) as replica:
        words = ["demo", "--engine", replica.url, "--model", "b", "--api-key-env", "KEY", "--events", "40"]
        done = subprocess.run(
            [sys.executable, "-m", "forebay", *words, "--json", "--out", str(tmp_path / "out")],
            env={**os.environ, "FOREBAY_HOME": str(home), "KEY": KEY},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["run"]["state"], document["run"]["accepted"]) == ("FINISHED", 40)
    assert (document["summary"]["results"], document["summary"]["dead_letters"]) == (40, 0)
    assert sum(document["summary"]["topics"].values()) == 40
    assert document["summary"]["right"]["events"] == 40
    assert document["measured"]["answers"] > 0
    assert 0 < document["first_answer_s"] < 400
    # A machine that is busy answers fewer at a time.
    assert re.search(r"40 posts, at most [0-9]+ at a time: about", done.stderr), done.stderr
    assert KEY not in done.stdout + done.stderr
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_rows_of_less_than_a_second_are_distinguished() -> None:
    first, *_ = SUMMARY.slices
    quick = replace(SUMMARY, slices=tuple(replace(first, start_ms=n * 300) for n in range(4)))
    rows = [line.replace("│", " ").split() for line in shown(quick).splitlines() if "█" in line]
    assert [row[0] for row in rows if row[0].startswith("00:00:0")] == [
        "00:00:00.0",
        "00:00:00.3",
        "00:00:00.6",
        "00:00:00.9",
    ]


def test_empty_summary() -> None:
    nothing = DemoSummary(0, 0, 0, 0.0, 0.0, {}, {}, {}, (), ())
    assert "0 answers" in shown(nothing)
    assert "sentiment" not in shown(nothing)
