"""Static batching: batches of waiting requests, and the effect of a misbehaving process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from benchmarks.batching.transformers import StaticBatchTarget, TransformersWorker, WorkerOptions

from forebay.bench.client import measure
from forebay.bench.load.schedules import Bursts, RequestLoad, make_load
from forebay.bench.load.workloads import CappedExponential, Exactly, RandomTokens
from forebay.bench.records import LoadRequest
from forebay.engine.launch import ensure_engine
from forebay.settings import Settings, load_settings

SCRIPTED = Path(__file__).with_name("scripted_worker.py")
Start = Callable[..., TransformersWorker]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, Path(sys.executable))


@pytest.fixture
def start(tmp_path: Path, settings: Settings) -> Iterator[Start]:
    workers = []

    def start() -> TransformersWorker:
        options = WorkerOptions(
            python=Path(sys.executable),
            model=str(tmp_path / "batches"),
            dtype="bfloat16",
            script=SCRIPTED,
        )
        workers.append(TransformersWorker(options, settings).__enter__())
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


def burst(lengths: Sequence[int], prompt: str | Sequence[int] = (1, 2, 3)) -> RequestLoad:
    requests = [
        LoadRequest(index, 0.0, prompt, tokens, prompt_tokens=len(prompt))
        for index, tokens in enumerate(lengths)
    ]
    return RequestLoad(requests, None, {})


def batches(tmp_path: Path) -> list[list[int]]:
    return [json.loads(line) for line in (tmp_path / "batches").read_text().splitlines()]


def test_batch_ends_with_its_longest_answer(start: Start, tmp_path: Path) -> None:
    target = StaticBatchTarget(start(), 3)
    run = measure(target, burst([5, 9, 2, 7, 1, 1, 4]))
    assert batches(tmp_path) == [[3, 9], [3, 7], [1, 4]]
    assert [record.output_tokens for record in run.records] == [5, 9, 2, 7, 1, 1, 4]
    assert [record.prompt_tokens for record in run.records] == [3] * 7
    assert all(record.answered and record.finish_reason == "length" for record in run.records)
    assert [len(record.chunks) for record in run.records] == [1] * 7
    assert [chunk.tokens for chunk in run.records[1].chunks] == [9]
    assert run.asked["target"] == "transformers, static batches of 3"
    assert len(target.batches) == 3


def test_failed_batch_fails_its_requests_only(start: Start) -> None:
    worker = start()
    run = measure(StaticBatchTarget(worker, 2), burst([1, 1], "fail"))
    assert [record.error is not None and "buy more" in record.error for record in run.records] == [True, True]
    assert all(record.answered for record in measure(StaticBatchTarget(worker, 2), burst([1, 1])).records)


@pytest.mark.long
@pytest.mark.vllm
def test_transformers_answers_in_batches(tmp_path: Path) -> None:
    settings = load_settings()
    engine = ensure_engine(settings)
    options = WorkerOptions(python=engine.python, model=str(engine.model), dtype="float32")
    load = make_load(Bursts(), RandomTokens(Exactly(8), CappedExponential(3, 6)), 5, seed=1)
    with TransformersWorker(options, settings) as worker:
        target = StaticBatchTarget(worker, 2)
        run = measure(target, load)
        assert [record.error for record in run.records] == [None] * 5
        lengths = [one.output_tokens for one in load.requests]
        assert [batch.steps for batch in target.batches] == [max(lengths[:2]), max(lengths[2:4]), lengths[4]]
        assert all(0 < batch.prefill_s <= batch.took_s for batch in target.batches)
        (refused,) = measure(target, burst([1], [10**6])).records
        assert refused.error is not None
        assert "has a token outside of" in refused.error
        (refused,) = measure(target, burst([20_000])).records
        assert refused.error is not None
        assert "the model takes" in refused.error
        assert measure(target, burst([2], "The capital of France is")).records[0].prompt_tokens == 5
