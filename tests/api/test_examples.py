from __future__ import annotations

import doctest
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.harness.homes import new_home

import forebay as fb
from forebay import testing
from forebay.testing import Fixed, ReplicaScript, ReplicaThread

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("run_examples.py")
KAFKA = {"read_kafka", "write_kafka"}
CLUSTER = {"local_cluster"}
TIMEOUT_S = 500


def run_examples(
    folder: Path, *names: str, broker: str = "broker:9092", connectors: Path | None = None
) -> None:
    shutil.copytree(ROOT / "examples", folder / "examples")
    with ReplicaThread(ReplicaScript(models=("smollm2-135m-instruct",), delay=Fixed(0.01))) as replica:
        done = subprocess.run(
            [sys.executable, str(RUNNER), replica.url, broker, *names],
            cwd=folder,
            env={**os.environ, "FOREBAY_HOME": str(new_home(folder / "home", connectors))},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("module", ["benchmarks.trend_finder", "forebay.apps.topics.finder"])
def test_examples_of_trends_and_topics_run(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted > 3
    assert found.failed == 0


def test_examples_without_flink_run(tmp_path: Path) -> None:
    run_examples(tmp_path, *(f"testing.{name}" for name in sorted(set(testing.__all__) - CLUSTER)))


@pytest.mark.flink
@pytest.mark.slow
def test_examples_run(tmp_path: Path) -> None:
    run_examples(tmp_path, *sorted(set(fb.__all__) - KAFKA), *(f"testing.{name}" for name in CLUSTER))


@pytest.mark.long
@pytest.mark.flink
def test_examples_with_kafka_run(tmp_path: Path, kafka_jar: Path, node: Any) -> None:
    from benchmarks.topic_client import make_topic

    for name in ("tickets", "teams"):
        make_topic(node.bootstrap, name, 1)
    run_examples(tmp_path, *sorted(KAFKA), broker=node.bootstrap, connectors=kafka_jar.parent)
