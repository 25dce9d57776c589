"""Many short requests in one batch, and a single one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from benchmarks.__main__ import application
from benchmarks.batching.burst import BurstOptions, burst_document, latencies_s, measure_burst
from typer.testing import CliRunner

from benchmarks.batching import burst
from forebay.bench.client import measure
from forebay.bench.load.plan import Load
from forebay.bench.records import LoadRun
from forebay.bench.targets.base import Target
from forebay.errors import EngineError, SettingError
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

OPTIONS = BurstOptions(requests=7, repeats=3, output_tokens=2)


def test_all_three_are_measured() -> None:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        found = measure_burst(replica.url, None, OPTIONS)
    assert found.complete
    assert len(found.alone.run.records) == 3
    assert found.batch is not None
    assert found.apart is not None
    assert len(found.batch.run.records) == 1
    assert len(found.apart.run.records) == 7
    # All prompts are in the one request.
    (whole,), alone = found.batch.run.records, found.alone.run.records[0]
    assert (whole.prompt_tokens or 0) > 5 * (alone.prompt_tokens or 0)
    document = burst_document(found, provenance={})
    (took,) = latencies_s(found.batch)
    assert document["batch"]["requests_per_s"] == pytest.approx(7 / took)
    assert document["gain"] == pytest.approx(7 * document["alone"]["p50_s"] / took)
    assert document["alone"]["p99_s"] is None
    assert document["apart"]["failed"] == 0


def test_a_batch_that_the_server_refuses_is_told() -> None:
    # Longer than the single request, so that only the batch is refused.
    with ReplicaThread(ReplicaScript(max_model_len=20)) as replica, pytest.raises(EngineError):
        measure_burst(replica.url, None, BurstOptions(requests=3, output_tokens=40))


def test_an_interrupted_warm_up_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(target: Target, load: Load, **more: Any) -> LoadRun:
        return replace(measure(target, load, **more), complete=False)

    monkeypatch.setattr(burst, "measure", interrupted)
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        found = measure_burst(replica.url, None, OPTIONS)
    assert not found.complete
    assert len(found.alone.run.records) == 1, "the warm-up's own"


def test_a_batch_that_is_not_answered_in_full_is_not_valid() -> None:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        found = measure_burst(replica.url, None, OPTIONS)
    assert found.batch is not None
    (record,) = found.batch.run.records
    short = replace(found.batch, run=replace(found.batch.run, records=(replace(record, output_tokens=2),)))
    reasons = burst_document(replace(found, batch=short), provenance={})["reasons"]
    assert any("have 2 tokens, and 14 were asked for" in reason for reason in reasons)


def test_the_command_shows_what_each_took() -> None:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        shown = CliRunner().invoke(application(), ["burst", "--quick", "--url", replica.url])
        told = CliRunner().invoke(application(), ["burst", "--quick", "--url", replica.url, "--json"])
    document = orjson.loads(told.stdout)
    # The replica counts tokens by characters, so the random prompts of a run may be too long or not.
    assert told.exit_code == bool(document["reasons"])
    assert shown.exit_code == ("INVALID: " in shown.stdout)
    assert "one alone (median)" in shown.stdout
    assert "100 prompts, one HTTP request" in shown.stdout
    assert document["requests"] == 100


def test_sizes_are_bounded() -> None:
    for wrong in ({"requests": 0}, {"requests": 10**6}):
        with pytest.raises(SettingError, match="expected 1 to"):
            BurstOptions(**wrong)
    error = CliRunner().invoke(application(), ["burst", "--quick", "--requests", "5"]).exception
    assert "--quick and --requests" in str(error)
