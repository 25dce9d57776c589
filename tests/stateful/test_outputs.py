"""What leaves a turn carries what its call was."""

from __future__ import annotations

from forebay.codec import encode
from forebay.records import Event, KeyedEvent, Result, Usage
from forebay.stateful.entries import Turn
from forebay.stateful.machine import Emit
from forebay.stateful.outputs import leaving
from forebay.stateful.program import Output, Step


def test_a_result_names_the_replica_of_its_call() -> None:
    item = KeyedEvent("i", "k", Event(b"x", {"text": "x"}), 5)
    turn = Turn(seq=1, key="k", read_ms=5, data=encode(item))
    carrier = Result(
        "i", "k", {}, "said", Usage(), 1, 5, 0.5, 0.25, finish_reason="stop", replica="http://a:1"
    )
    _, effects = leaving(turn, Step(None, outputs=(Output("a"),)), carrier)
    (given,) = effects
    assert isinstance(given, Emit)
    result = given.record
    assert (result.replica, result.finish_reason, result.called_s) == ("http://a:1", "stop", 0.25)
    _, (alone,) = leaving(turn, Step(None, outputs=(Output("a"),)), None)
    assert alone.record.replica is None
