"""What leaves a turn carries what its call was."""

from __future__ import annotations

from forebay.codec import encode
from forebay.records import Event, KeyedEvent, Result, Timeline, Usage
from forebay.stateful.entries import Firing, Turn, pack_turn, unpack_turn
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


def test_a_result_has_the_timeline_of_its_call_and_without_one_that_of_its_event() -> None:
    item = KeyedEvent("i", "k", Event(b"x", {}), 5, Timeline(7, 8))
    turn = Turn(seq=1, key="k", read_ms=5, data=encode(item))
    carrier = Result("i", "k", {}, "said", Usage(), 1, 5, 0.5, 0.25, timeline=Timeline(7, 8, 9, 10, 11))
    for given, timeline in ((carrier, Timeline(7, 8, 9, 10, 11)), (None, Timeline(7, 8))):
        _, (effect,) = leaving(turn, Step(None, outputs=(Output("a"),)), given)
        assert isinstance(effect, Emit)
        assert isinstance(effect.record, Result)
        assert effect.record.timeline == timeline


def test_what_a_timer_gives_has_a_timeline_from_its_firing_where_one_is_kept() -> None:
    turn = Turn(seq=1, key="k", read_ms=5, firing=Firing("wake", "event", 4, b"x"))
    for given, timeline in ((turn, None), (turn.timed(), Timeline(5000, 5000))):
        # As after a restore.
        again = unpack_turn(pack_turn(given))
        assert (again.item.id, again.item.event.time_ms) == (turn.item.id, 4)
        _, (effect,) = leaving(again, Step(None, outputs=(Output("a"),)), None)
        assert isinstance(effect, Emit)
        assert isinstance(effect.record, Result)
        assert effect.record.timeline == timeline
