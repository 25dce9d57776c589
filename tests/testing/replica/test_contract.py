"""The scripted replica answers like vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.testing.replica.contract import CASES, RECORDED, ask

from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

EXPECTED: dict[str, Any] = json.loads(RECORDED.read_text())


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    with ReplicaThread(ReplicaScript(models=("m",), delay=Fixed(0.0), chunks=4)) as replica:
        yield replica.url


@pytest.mark.parametrize("name", CASES)
def test_scripted_replica_answers_like_recorded_vllm(scripted: str, name: str) -> None:
    assert ask(scripted, "m", name) == EXPECTED[name]


@pytest.mark.vllm
@pytest.mark.parametrize("name", CASES)
def test_vllm_answers_as_recorded(local_engine: Any, name: str) -> None:
    assert ask(str(local_engine[0]), "smollm2-135m-instruct", name) == EXPECTED[name]
