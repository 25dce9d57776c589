"""Outputs carry the data of their call."""

from __future__ import annotations

from dataclasses import fields

from forebay.codec import encode
from forebay.connectors.kafka.sink import too_large
from forebay.flink.request_handler import result as result_of
from forebay.records import Completion, Event, KeyedEvent, Result, Timeline, Timing, Usage
from forebay.stateful.machine import Emit
from forebay.stateful.program import Output, Step
from forebay.stateful.turns import Firing, Turn, leaving, pack_turn, unpack_turn

KEPT = [each for each in fields(Event) if each.name != "fields"]


def test_result_names_the_replica_of_its_call() -> None:
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


def test_result_has_everything_for_a_dead_letter_of_its_record() -> None:
    event = Event(b"x", {"text": "x"}, 7, "t/0@1", b"k", {"h": b"v"}, record_ms=9)
    item = KeyedEvent("i", "k", event, 5)
    turn = Turn(seq=1, key="k", read_ms=5, data=encode(item))
    _, (effect,) = leaving(turn, Step(None, outputs=(Output("a"),)), None)
    assert isinstance(effect, Emit)
    done = Completion("a", "stop", Usage(), Timing(0, 0))
    for given in (effect.record, result_of(item, done, "a", attempts=1)):
        assert isinstance(given, Result)
        letter = too_large(given, "too large")
        assert all(getattr(letter, each.name) == getattr(event, each.name) for each in KEPT)


def test_result_has_the_timeline_of_its_call_or_event() -> None:
    item = KeyedEvent("i", "k", Event(b"x", {}), 5, Timeline(7, 8))
    turn = Turn(seq=1, key="k", read_ms=5, data=encode(item))
    carrier = Result("i", "k", {}, "said", Usage(), 1, 5, 0.5, 0.25, timeline=Timeline(7, 8, 9, 10, 11))
    for given, timeline in ((carrier, Timeline(7, 8, 9, 10, 11)), (None, Timeline(7, 8))):
        _, (effect,) = leaving(turn, Step(None, outputs=(Output("a"),)), given)
        assert isinstance(effect, Emit)
        assert isinstance(effect.record, Result)
        assert effect.record.timeline == timeline


def test_timer_output_has_a_timeline_from_its_firing() -> None:
    turn = Turn(seq=1, key="k", read_ms=5, firing=Firing("wake", "event", 4, b"x"))
    for given, timeline in ((turn, None), (turn.timed(), Timeline(5000, 5000))):
        # As after a restore.
        again = unpack_turn(pack_turn(given))
        assert (again.item.id, again.item.event.time_ms) == (turn.item.id, 4)
        _, (effect,) = leaving(again, Step(None, outputs=(Output("a"),)), None)
        assert isinstance(effect, Emit)
        assert isinstance(effect.record, Result)
        assert effect.record.timeline == timeline
