"""A run of `forebay bench serve` has the engine's own figures, and its provenance."""

from __future__ import annotations

from forebay.bench.sampling import fetch_version
from forebay.bench.serve import LoadOptions, TargetOptions, run_provenance, run_sources, serve_runs
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed


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


def test_an_engine_that_reports_no_version() -> None:
    with ReplicaThread(ReplicaScript(absent=("/version",))) as replica:
        assert fetch_version(replica.url) is None
    assert fetch_version("http://127.0.0.1:9") is None
