"""Every event of a load is sent to the engine before the first peer is measured."""

from __future__ import annotations

from benchmarks.peers.base import ID_IN_PROMPT
from benchmarks.peers.parts import ask_all
from benchmarks.peers.run import Load

from forebay.testing.replica import ReplicaProcess, ReplicaScript, fetch_report
from forebay.testing.script import Fixed


def test_the_engine_is_asked_about_each_event_once() -> None:
    script = ReplicaScript(delay=Fixed(0.001), id_in_prompt=ID_IN_PROMPT)
    with ReplicaProcess(script) as replica:
        ask_all(replica.url, script.models[0], Load(10, 3))
        calls = fetch_report(replica.url).calls
    assert calls == {f"event-{index}": 1 for index in range(30)}
