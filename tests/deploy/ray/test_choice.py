"""A program on Ray gets the replica that has its prefix, until that one is too busy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.harness.clock import ManualClock

from forebay.deploy.ray.choice import MAX_S, SEEN_S, ReplicaChooser, asked_text
from forebay.deploy.ray.stats import ReplicaSeen, replica_metadata, routing_stats
from forebay.fleet.routing_request import prompt_text
from forebay.records import Message, Request

PREFIX = "What all requests of a group have in common. " * 100


class Program:
    """A program that uses a chooser with the replicas a, b and c."""

    def __init__(self, *replicas: ReplicaSeen) -> None:
        self.clock = ManualClock()
        self.chooser = ReplicaChooser(self.clock)
        self.note(*replicas)

    def note(self, *replicas: ReplicaSeen) -> None:
        given = {each.name: each for each in replicas}
        self.chooser.update([given.get(name, ReplicaSeen(name)) for name in "abc"])

    def send(self, text: str, instead: str | None = None) -> str:
        """The destination of a request; `instead`: Serve's choice."""
        placement = self.chooser.place(text)
        ((best,), _, _) = self.chooser.rank(placement)
        self.chooser.settle(placement, instead or best)
        return best

    def in_flight(self) -> list[int]:
        return [self.chooser.in_flight(name) for name in "abc"]


def test_a_prefix_keeps_its_replica() -> None:
    program = Program()
    groups = [f"{number} {PREFIX}" for number in range(3)]
    first = []
    for group in groups:
        first.append(program.send(f"{group} 1"))
        program.clock.advance(1.0)
    assert sorted(first) == ["a", "b", "c"]
    for turn in range(2, 6):
        for group, replica in zip(groups, first, strict=True):
            assert program.send(f"{group} {turn}") == replica
            program.clock.advance(1.0)


def test_a_hot_prefix_spills_once_its_replica_has_a_queue() -> None:
    program = Program()
    assert program.send(PREFIX) == "a"
    program.clock.advance(1.0)
    chosen = [program.send(f"{PREFIX} {number}") for number in range(60)]
    assert chosen[:5] == ["a"] * 5
    assert set(chosen) == {"a", "b", "c"}


def test_all_replicas_are_ranked_the_best_first() -> None:
    program = Program()
    program.send(PREFIX, instead="b")
    program.clock.advance(1.0)
    program.send(PREFIX[:2000], instead="c")
    program.clock.advance(1.0)
    placement = program.chooser.place(PREFIX)
    assert program.chooser.rank(placement) == [["b"], ["c"], ["a"]]


def test_one_replica_is_the_only_rank() -> None:
    program = Program()
    program.chooser.update([ReplicaSeen("a")])
    assert program.chooser.rank(program.chooser.place("")) == [["a"]]


def test_spilled_request_counts_at_its_new_replica() -> None:
    program = Program()
    assert program.send(PREFIX, instead="c") == "a"
    assert program.in_flight() == [0, 0, 1]
    program.clock.advance(1.0)
    assert program.send(PREFIX) == "c", "where the prefix is now"


def test_a_request_that_is_ranked_again_counts_once() -> None:
    program = Program()
    placement = program.chooser.place(PREFIX)
    for _ in range(5):
        program.chooser.rank(placement)
    assert program.in_flight() == [1, 0, 0]
    program.chooser.settle(placement, None)
    assert program.in_flight() == [0, 0, 0]
    assert program.send(PREFIX, instead="b") == "a"
    program.clock.advance(1.0)
    assert program.send(PREFIX) == "b", "a was never sent it"


def test_requests_end_as_reported_by_their_replica() -> None:
    program = Program()
    for _ in range(5):
        program.send(PREFIX, instead="b")
    program.note(ReplicaSeen("b", running=2.0, waiting=1.0))
    program.send("", instead="a")
    assert program.in_flight()[1] == 5, "it may not have seen them yet"
    program.clock.advance(SEEN_S)
    program.send("", instead="a")
    assert program.in_flight()[1] == 3
    program.note(ReplicaSeen("b", running=0.0, waiting=0.0))
    program.send("", instead="a")
    assert program.in_flight()[1] == 0


def test_requests_end_by_themselves_without_reports() -> None:
    program = Program()
    program.send(PREFIX, instead="b")
    program.clock.advance(MAX_S / 2)
    program.send("", instead="a")
    assert program.in_flight()[1] == 1
    program.clock.advance(MAX_S / 2)
    program.send("", instead="a")
    assert program.in_flight()[1] == 0


def test_waiting_requests_of_others_count() -> None:
    program = Program(ReplicaSeen("a", running=8.0, waiting=3.0), ReplicaSeen("b", running=8.0, waiting=1.0))
    assert program.send("hello") == "c"
    assert program.send("hello") == "c", "it has less to do than b still"


def test_replica_with_a_silent_engine_is_skipped() -> None:
    program = Program()
    assert program.send(PREFIX) == "a"
    program.clock.advance(1.0)
    program.note(ReplicaSeen("a", away=True))
    assert program.send(PREFIX) == "b", "though a has the prefix"
    program.note(*(ReplicaSeen(name, away=True) for name in "abc"))
    assert program.send(PREFIX) in "abc", "where none answers it goes to one of them"


def test_a_replica_that_has_gone_is_forgotten() -> None:
    program = Program()
    waiting = program.chooser.place(PREFIX)
    program.chooser.rank(waiting)
    for name in "ac":
        program.send(PREFIX, instead=name)
    program.clock.advance(1.0)
    program.chooser.update([ReplicaSeen(name) for name in "bcd"])
    placement = program.chooser.place(PREFIX)
    assert program.chooser.rank(placement)[0] == ["c"], "d has a's place, and not its cache"
    program.chooser.settle(waiting, "a")
    assert [program.chooser.in_flight(name) for name in "bd"] == [0, 0]


def chat(*contents: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": each} for each in contents]}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([chat("one", "two")], "\0user\0one\0user\0two"),
        ([chat([{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {}}])], "\0user\0one"),
        ([json.dumps(chat("one")).encode()], "\0user\0one"),
        ([json.dumps(chat("one"))], "\0user\0one"),
        ([{"prompt": "one"}], "one"),
        ([{"prompt": ["one", "two"]}], "one\0two"),
        ([{"input": "one"}], "one"),
        (["one"], "one"),
        ([7, None, {"seed": 1}, "one"], "one"),
        ([], ""),
        ([{"messages": [None, {"role": "user"}]}], "\0user\0"),
        (["{no JSON"], ""),
    ],
)
def test_the_prompt_is_found_among_a_calls_arguments(values: list[object], text: str) -> None:
    assert asked_text(values) == (text, 0)


def test_tokens_that_are_numbers_are_counted() -> None:
    assert asked_text([{"prompt": [1, 2, 3]}]) == ("", 3)


def test_the_prefix_is_the_one_that_a_gateway_sees() -> None:
    request = Request(id="1", model="m", messages=(Message("user", "one"),))
    assert asked_text([chat("one")])[0] == prompt_text(request)


METRICS = """vllm:num_requests_running{engine="0"} 3
vllm:num_requests_waiting{engine="0"} 1
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1
"""


def test_router_reads_what_a_replica_reports() -> None:
    seen = ReplicaSeen.parse("a", replica_metadata("http://h:1", METRICS), routing_stats(METRICS))
    assert seen == ReplicaSeen("a", running=3.0, waiting=1.0, kv_tokens=1600.0)
    assert replica_metadata("http://h:1", METRICS)["url"] == "http://h:1"
    assert ReplicaSeen.parse("a", replica_metadata("u", None), routing_stats(None)).away
    assert ReplicaSeen.parse("a", replica_metadata("u", ""), routing_stats("")) == ReplicaSeen("a")
    odd = {"running": "many", "waiting": float("nan"), "away": 1}
    assert ReplicaSeen.parse("a", {"kv_tokens": -1}, odd) == ReplicaSeen("a")
