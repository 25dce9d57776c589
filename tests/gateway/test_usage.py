"""Token counts at the end of a stream."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.wire import MAX_EVENT_BYTES, UsageFilter

COUNT = b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}'
ENDS = st.sampled_from([b"\n\n", b"\r\n\r\n"])
CONTENT = st.sampled_from(
    [
        b'data: {"choices":[{"delta":{"content":' + orjson.dumps('"choices":[] "usage":1') + b"}}]}",
        b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":3}}',
        b'data: {"choices":[]}',
        b": comment",
        b"data: [DONE]",
        b"event: ping\ndata: {}",
    ]
)


@given(st.data(), st.lists(st.tuples(CONTENT, ENDS)), st.lists(st.tuples(CONTENT, ENDS)), ENDS)
def test_only_the_usage_event_is_removed(data: st.DataObject, before: list, after: list, end: bytes) -> None:  # type: ignore[type-arg]
    rest = data.draw(st.sampled_from([b"", b"data: {"]))
    kept = [b"".join(b"".join(event) for event in events) for events in (before, after)]
    stream = kept[0] + COUNT + end + kept[1] + rest
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    hidden = UsageFilter()
    found = b"".join(
        hidden.pass_on(stream[begin:stop])
        for begin, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    )
    assert found + hidden.rest() == b"".join(kept) + rest


def test_endless_event_is_passed_on() -> None:
    hidden = UsageFilter()
    found = b"".join(hidden.pass_on(b"x" * 1000) for _ in range(1000))
    assert len(found) >= 1_000_000 - MAX_EVENT_BYTES
