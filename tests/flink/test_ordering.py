"""Release rules: everything is emitted exactly once and in its key's order, however calls complete."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.flink.request_pool import OrderedByKey
from forebay.records import DeadLetter

LETTER = DeadLetter(raw=b"", cause="x", detail="")


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    """Calls that are accepted and finished, in any order with acceptance first."""
    keys = draw(st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=30))
    waiting = [(str(i), key) for i, key in enumerate(keys)]
    in_flight: list[tuple[str, str]] = []
    steps = []
    while waiting or in_flight:
        if waiting and (not in_flight or draw(st.booleans())):
            call = waiting.pop(0)
            in_flight.append(call)
            steps.append(("accept", *call))
        else:
            call = in_flight.pop(draw(st.integers(0, len(in_flight) - 1)))
            steps.append(("finish", *call))
    return steps


def play(steps: list[tuple[str, str, str]]) -> list[str]:
    release = OrderedByKey()
    left = []
    for what, id, key in steps:
        if what == "accept":
            release.accept(id, key)
        else:
            left += [gone for gone, _ in release.finish(id, LETTER)]
    return left


@given(runs())
def test_by_key_each_answer_is_emitted_once_in_key_order(steps: list[tuple[str, str, str]]) -> None:
    accepted = [(id, key) for what, id, key in steps if what == "accept"]
    left = play(steps)
    assert sorted(left) == sorted(id for id, _ in accepted)
    for key in "abc":
        of_key = [id for id, k in accepted if k == key]
        assert [id for id in left if id in of_key] == of_key


@given(runs())
def test_by_key_an_answer_waits_only_for_earlier_ones_of_its_key(
    steps: list[tuple[str, str, str]],
) -> None:
    release = OrderedByKey()
    unfinished: dict[str, list[str]] = {"a": [], "b": [], "c": [], "": []}
    accepted: dict[str, list[str]] = {"a": [], "b": [], "c": [], "": []}
    left: set[str] = set()
    for what, id, key in steps:
        if what == "accept":
            release.accept(id, key)
            unfinished[key].append(id)
            accepted[key].append(id)
            continue
        unfinished[key].remove(id)
        left |= {gone for gone, _ in release.finish(id, LETTER)}
        if not key:
            assert id in left
            continue
        oldest = accepted[key].index(unfinished[key][0]) if unfinished[key] else len(accepted[key])
        assert set(accepted[key][:oldest]) <= left


@given(runs())
def test_without_keys_answers_are_emitted_as_they_finish(steps: list[tuple[str, str, str]]) -> None:
    assert play([(what, id, "") for what, id, _ in steps]) == [
        id for what, id, _ in steps if what == "finish"
    ]


def test_by_key_emitted_answers_are_not_kept() -> None:
    release = OrderedByKey()
    for i in range(1000):
        release.accept(str(i), f"key {i}")
        release.finish(str(i), LETTER)
    assert [len(kept) for kept in (release._queues, release._keys, release._held)] == [0, 0, 0]
