"""`forebay demo --kafka`: refused options, and a run on a real node."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.topic_client import consume
from typer.testing import CliRunner

from forebay.cli import application
from forebay.cli.demo import kafka as demo_kafka
from forebay.connectors.jars import KAFKA
from forebay.errors import ForebayError, SettingError
from forebay.settings import Settings
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--kafka"], "to start one; found neither"),
        (["--kafka", "broker"], "--kafka: expected HOST:PORT, .* found 'broker'"),
    ],
)
def test_missing_options_are_reported_before_the_start(tmp_path: Path, words: list[str], says: str) -> None:
    jar = tmp_path / "connectors" / KAFKA.name
    environ = {"FOREBAY_HOME": str(tmp_path), "FOREBAY_KAFKA_HOME": ""}
    command = ["demo", *words, "--engine", "http://h:1", "--out", str(tmp_path / "out")]
    error = CliRunner(env=environ).invoke(application(), command).exception
    assert isinstance(error, SettingError)
    assert "run: forebay connectors install kafka" in str(error)
    jar.parent.mkdir()
    with jar.open("wb") as file:
        file.truncate(KAFKA.size)
    error = CliRunner(env=environ).invoke(application(), command).exception
    assert re.search(says, str(error))
    assert not (tmp_path / "out").exists()


def test_demo_kafka_does_not_get_the_engines_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    @contextmanager
    def start(home: Path, folder: Path, *, environment: Mapping[str, str]) -> Iterator[Any]:
        given.update(environment)
        yield SimpleNamespace(bootstrap="127.0.0.1:9")

    monkeypatch.setattr(demo_kafka, "local_kafka", start)
    monkeypatch.setenv("LLM_API_KEY", "sk-secret")
    settings = Settings(tmp_path, Path(), kafka_home=tmp_path, secret_variables=frozenset({"LLM_API_KEY"}))
    with demo_kafka.demo_kafka(demo_kafka.LOCAL, settings, tmp_path):
        assert "PATH" in given
    assert "LLM_API_KEY" not in given


@pytest.mark.slow
@pytest.mark.flink
def test_posts_are_processed_from_topic_to_topic(
    node: Any, kafka_jar: Path, flink_logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_HOME", str(kafka_jar.parents[1]))
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        words = ["--kafka", node.bootstrap, "--events", "60", "--json", "-"]
        words += ["--engine", replica.url, "--out", str(tmp_path / "out")]
        done = CliRunner().invoke(application(), ["demo", *words])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    topics, run, summary = document["topics"], document["run"], document["summary"]
    assert (run["state"], run["accepted"], run["results"], run["dead_letters"]) == ("FINISHED", 60, 60, 0)
    assert (summary["results"], sum(summary["topics"].values())) == (60, 60)
    assert len(summary["slices"]) > 1
    assert topics["bootstrap"] == node.bootstrap
    texts = [json.loads(message.value())["text"] for message in consume(node.bootstrap, topics["posts"])]
    answers = [json.loads(message.value()) for message in consume(node.bootstrap, topics["answers"])]
    assert sorted(answer["fields"]["text"] for answer in answers) == sorted(texts)
    assert consume(node.bootstrap, topics["dead_letters"]) == []


@pytest.mark.long
@pytest.mark.flink
def test_a_file_replayed_over_a_kafka_of_the_demos_own(
    kafka_home: Path, kafka_jar: Path, tmp_path: Path
) -> None:
    rows = "".join(f"post {n},2026-01-01T00:00:{n % 60:02}Z\n" for n in range(30))
    (tmp_path / "in.csv").write_text(f"text,time\n{rows}only one\n")
    words = ["--input", str(tmp_path / "in.csv"), "--speed", "20", "--kafka"]
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        words += ["--engine", replica.url, "--out", str(tmp_path / "out")]
        done = subprocess.run(
            [sys.executable, "-m", "forebay", "demo", *words],
            env={
                **os.environ,
                "FOREBAY_HOME": str(kafka_jar.parents[1]),
                "FOREBAY_KAFKA_HOME": str(kafka_home),
            },
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "31 events, 30 answers, 1 dead letter" in done.stdout
    assert "malformed_record" in done.stdout
    assert f"its data is in {tmp_path / 'out' / 'kafka'}" in done.stdout
    text = done.stdout.partition(", at 127.0.0.1:")[2]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(text.partition(";")[0]))) != 0


@pytest.mark.long
@pytest.mark.flink
def test_unreachable_kafka_is_named(
    kafka_jar: Path, flink_logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_HOME", str(kafka_jar.parents[1]))
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        words = ["--kafka", "127.0.0.1:9", "--engine", replica.url, "--out", str(tmp_path / "out")]
        error = CliRunner().invoke(application(), ["demo", *words]).exception
    assert isinstance(error, ForebayError)
    assert str(error).startswith("Kafka at 127.0.0.1:9 does not answer")
