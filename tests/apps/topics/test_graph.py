"""Messages from records to the topic stage."""

from __future__ import annotations

from typing import Any

import msgpack

from forebay.apps.topics.graph import Texts
from forebay.codec import encode
from forebay.flink.keying import TextField
from forebay.flink.stages import payload
from forebay.records import Event


def test_a_text_goes_with_its_time_and_its_partition() -> None:
    texts: Any = Texts(TextField("text"), key=None, shards=1)
    texts.open(None)
    given = []
    for position in ("posts/3@7", "posts.jsonl@7", None):
        (data,) = texts.process_element(encode(Event(b"{}", {"text": "hello"}, 5, position)), None)
        given.append(msgpack.unpackb(payload(data)))
    assert given == [[5, "hello", "posts/3"], [5, "hello", ""], [5, "hello", ""]]
