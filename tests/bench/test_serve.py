"""Loads from the options of `forebay bench serve`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from forebay.bench.load.schedules import Bursts, ClosedLoop, Constant, Gamma, Poisson, Ramp, TraceReplay
from forebay.bench.load.workloads import (
    PrefixGroups,
    RandomTokens,
    RandomWords,
    SessionWorkload,
    TracePrompts,
)
from forebay.bench.sampling import fetch_version
from forebay.bench.serve import LoadOptions, TargetOptions, run_provenance, run_sources, serve_runs
from forebay.bench.targets.openai import OpenAiTarget
from forebay.bench.targets.others import TgiTarget, TritonTarget
from forebay.errors import SettingError
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:0{at}.0,{50 + at},{5 + at}\n" for at in range(4)
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [ClosedLoop(8)]),
        ({"concurrencies": [1, 4]}, [ClosedLoop(1), ClosedLoop(4)]),
        ({"rates": [1, 2.5]}, [Poisson(1), Poisson(2.5)]),
        ({"rates": [math.inf]}, [Bursts()]),
        ({"rates": [3], "constant": True}, [Constant(3)]),
        ({"rates": [3], "burstiness": 0.5}, [Gamma(3, 0.5)]),
        ({"ramp": "1:10:60"}, [Ramp(1, 10, 60)]),
        ({"bursts": "20:5"}, [Bursts(20, 5)]),
    ],
)
def test_schedule_options(options: dict[str, Any], expected: list[object]) -> None:
    plans = LoadOptions(**options).plan(texts=False)
    assert [plan.schedule for plan in plans] == expected
    assert all(plan.requests == 100 for plan in plans)


def test_number_of_requests(trace: Path) -> None:
    assert [plan.requests for plan in LoadOptions(rates=[2, 10], seconds=30).plan(texts=False)] == [60, 300]
    assert LoadOptions(requests=7).plan(texts=False)[0].requests == 7
    (replay,) = LoadOptions(trace=trace, speed=2).plan(texts=False)
    assert replay.requests == 4
    assert replay.schedule == TraceReplay([0.0, 1.0, 2.0, 3.0], 2, "trace.csv")
    assert isinstance(replay.workload, TracePrompts)
    load = replay.load()
    assert [one.due_s for one in load.requests] == [0, 0.5, 1, 1.5]
    assert [one.prompt_tokens for one in load.requests] == [50, 51, 52, 53]


def test_repeats_have_other_seeds_and_no_two_runs_share_prompts() -> None:
    plans = LoadOptions(rates=[1, 2], repeats=2, seed=5, requests=3, prompt_tokens="8").plan(texts=False)
    assert [(plan.schedule, plan.seed) for plan in plans] == [
        (Poisson(1), 5),
        (Poisson(1), 6),
        (Poisson(2), 5),
        (Poisson(2), 6),
    ]
    prompts = {tuple(one.prompt) for plan in plans for one in plan.load().requests}
    assert len(prompts) == 12


@pytest.mark.parametrize(
    ("options", "texts", "expected"),
    [
        ({}, False, RandomTokens),
        ({}, True, RandomWords),
        ({"prefix": "4:100"}, False, PrefixGroups),
        ({"turns": 3}, False, SessionWorkload),
    ],
)
def test_workload_options(options: dict[str, Any], texts: bool, expected: type) -> None:
    (plan,) = LoadOptions(**options, exact=False).plan(texts=texts)
    assert type(plan.workload) is expected
    assert not any(one.exact for one in plan.load().requests)


def test_files_are_sent_whole(tmp_path: Path) -> None:
    data, talks = tmp_path / "a.jsonl", tmp_path / "b.json"
    data.write_text('{"prompt": "a", "output_tokens": 3}\n{"prompt": "b"}\n')
    talks.write_text(
        '[{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello you"}]}]'
    )
    (plan,) = LoadOptions(data=data).plan(texts=True)
    assert plan.schedule == ClosedLoop(2), "no more at a time than there are"
    assert [(one.output_tokens, one.exact) for one in plan.load().requests] == [(3, True), (128, True)]
    (plan,) = LoadOptions(conversations=talks).plan(texts=True)
    assert [(one.output_tokens, one.exact) for one in plan.load().requests] == [(2, False)]
    (plan,) = LoadOptions(conversations=talks, output_tokens="9", exact=True).plan(texts=True)
    assert [(one.output_tokens, one.exact) for one in plan.load().requests] == [(9, True)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rates": [0]}, "--rate: expected requests per second, above 0 .* found 0"),
        ({"rates": [-math.inf]}, "--rate: expected"),
        ({"rates": [math.nan]}, "--rate: expected"),
        ({"rates": [1], "concurrencies": [1]}, "--rate and --concurrency decide when to send"),
        ({"burstiness": 2.0}, "give --rate"),
        ({"rates": [1], "constant": True, "burstiness": 2.0}, "--burstiness: expected none with --constant"),
        ({"rates": [1], "burstiness": 0.0}, "burstiness: expected"),
        ({"concurrencies": [0]}, "concurrency: expected"),
        ({"ramp": "1:2"}, "--ramp: expected FROM:TO:SECONDS, found '1:2'"),
        ({"ramp": "1:2:inf"}, "--ramp: expected FROM:TO:SECONDS"),
        ({"bursts": "1.5:2"}, "--bursts: expected a whole number"),
        ({"seconds": 5.0}, "--seconds 5: .* a --rate that is not infinite"),
        ({"rates": [1], "seconds": 0.0}, "--seconds 0: expected more than 0"),
        ({"rates": [1], "seconds": 5.0, "requests": 5}, "--requests and --seconds"),
        ({"prefix": "4:100", "turns": 2}, "--prefix and --turns decide what to send"),
        ({"prompt_tokens": "many"}, "lengths: expected a number of tokens"),
        ({"trace": Path("/none")}, "trace: /none cannot be read"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        LoadOptions(**options).plan(texts=False)


def test_a_server_of_texts_takes_no_workload_of_tokens() -> None:
    with pytest.raises(SettingError, match="--turns makes prompts of tokens"):
        LoadOptions(turns=2).plan(texts=True)


@pytest.mark.heavy
def test_samples_and_provenance_of_a_run(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("sys.argv", ["forebay", "bench", "serve", "--header", "Authorization: a-secret"])
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01), api_key="the-key")) as replica:
        target = TargetOptions(url=replica.url, api_key="the-key", protocol="chat").target()
        plans = LoadOptions(requests=3, concurrencies=[1, 2], prompt_tokens="8", output_tokens="4").plan(
            texts=True
        )
        runs = list(
            serve_runs(
                target,
                plans,
                origin=run_provenance(replica.url, "the-key", data=None),
                sources=lambda: run_sources(replica.url, "the-key", {}),
            )
        )
    assert len(runs) == 2
    for measured in runs:
        run = measured.run
        assert len(run.samples) >= 2
        # Counters start at 0 for each run.
        assert run.samples[0].values["generation_tokens"] == 0
        assert (
            run.samples[-1].values["generation_tokens"] >= sum(r.output_tokens or 0 for r in run.records) > 0
        )
        assert run.samples[0].at_s <= 0 < run.samples[-1].at_s
        assert run.provenance["engine_version"] == "0.0.0+fake"
        assert run.provenance["model"] == "fake"
        assert run.provenance["command"] == "forebay bench serve --header '[hidden]'"
        assert "the-key" not in str(run)


URL = "http://127.0.0.1:8100"


def test_targets() -> None:
    assert isinstance(TargetOptions(url=URL).target(), OpenAiTarget)
    chat = TargetOptions(url=URL, protocol="chat").target()
    assert chat.name == f"{URL}/v1/chat/completions"
    assert isinstance(TargetOptions(url=URL, protocol="tgi").target(), TgiTarget)
    triton = TargetOptions(url=URL, protocol="triton-trtllm", model="ensemble").target()
    assert isinstance(triton, TritonTarget)
    assert triton.model == "ensemble"
    with pytest.raises(SettingError, match="name the model"):
        TargetOptions(url=URL, protocol="triton").target()
    with pytest.raises(SettingError, match="takes no further fields"):
        TargetOptions(url=URL, protocol="tgi", extra={"a": 1}).target()
    assert "sk-" not in repr(TargetOptions(url=URL, api_key="sk-secret"))


def test_an_engine_that_reports_no_version() -> None:
    with ReplicaThread(ReplicaScript(absent=("/version",))) as replica:
        assert fetch_version(replica.url) is None
    assert fetch_version("http://127.0.0.1:9") is None
