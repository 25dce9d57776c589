"""Messages from records to the topic stage."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from tests.harness.metric_group import Group

from forebay.apps.topics.graph import Texts
from forebay.codec import decode, encode
from forebay.engine.prompt import request_id
from forebay.flink.event_time import REFUSED
from forebay.flink.keying import TextField
from forebay.flink.stages import payload
from forebay.records import Event


def context_of(group: Group) -> Any:
    return SimpleNamespace(get_metrics_group=lambda: group)


def test_text_keeps_its_time_partition_and_id() -> None:
    texts: Any = Texts(TextField("text"), key=None, id=None, shards=1)
    texts.open(context_of(group := Group()))
    given = []
    for position in ("posts/3@7", "posts.jsonl@7", None):
        (data,) = texts.process_element(encode(Event(b"{}", {"text": "hello"}, 5, position)), None)
        given.append(msgpack.unpackb(payload(data)))
    assert given[:2] == [[5, "hello", "posts/3", "posts/3@7"], [5, "hello", "", "posts.jsonl@7"]]
    assert given[2][3] == request_id(Event(b"{}", {}), "", None)
    texts.close()
    assert group.values() == {"records": 3, "dead_letters": 0}


@pytest.mark.parametrize(
    ("id", "says"),
    [
        (lambda event: event.fields["id"], "KeyError"),
        (lambda event: "a\ud800", "lone surrogate"),
        (lambda event: "x" * 1025, "longer than 1024 characters"),
    ],
)
def test_text_without_a_usable_id_is_rejected(id: Any, says: str) -> None:
    texts: Any = Texts(TextField("text"), key=None, id=id, shards=1)
    texts.open(context_of(group := Group()))
    ((tag, data),) = texts.process_element(encode(Event(b"{}", {"text": "hello"})), None)
    letter = decode(data)
    assert (tag, letter.cause) == (REFUSED, "bad_record")
    assert says in letter.detail
    assert group.values() == {"records": 1, "dead_letters": 1, "failures_bad_record": 1}
