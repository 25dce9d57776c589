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


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    """A vLLM with a parser for tool calls."""
    from forebay.engine.launch import EngineOptions, Silent, ensure_engine, local_replicas
    from forebay.settings import load_settings

    settings = load_settings()
    ensure_engine(settings, Silent())
    options = EngineOptions(
        kv_cache_gib=0.5,
        max_model_len=512,
        extra=("--seed", "3", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    )
    with local_replicas(1, options, settings=settings) as replicas:
        yield str(replicas[0])


@pytest.mark.parametrize("name", CASES)
def test_the_scripted_replica_answers_as_vllm_did(scripted: str, name: str) -> None:
    assert ask(scripted, "m", name) == EXPECTED[name]


@pytest.mark.vllm
@pytest.mark.parametrize("name", CASES)
def test_vllm_answers_as_it_did(vllm: str, name: str) -> None:
    assert ask(vllm, "smollm2-135m-instruct", name) == EXPECTED[name]
