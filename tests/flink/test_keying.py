"""Keys, ids and shards of events; an event without them becomes a dead letter."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock
from tests.harness.metric_group import MetricsContext

from forebay.codec import decode, encode
from forebay.engine.prompt import FieldTemplate
from forebay.errors import MAX_DETAIL_CHARS, TemplateFailed
from forebay.flink import keying as module
from forebay.flink.keying import Keying
from forebay.flink.metrics import SHARD_MARKS
from forebay.flink.shards import flink_keys, shard_of
from forebay.records import DeadLetter, Event, KeyedEvent, Timeline


class FromTemplate:
    """As the pipeline wraps a template."""

    def __init__(self, text: str) -> None:
        self.template = FieldTemplate(text, required=True)

    def __call__(self, event: Event) -> str:
        return self.template.render(event.fields, time_ms=event.time_ms)


def event(**fields: Any) -> Event:
    return Event(raw=b"raw \xff", fields=fields, time_ms=7, position="topic@1")


def keyed(value: Any, **settings: Any) -> tuple[int, Any]:
    keying = Keying(shards=8, clock=ManualClock(wall_ms=42), **settings)
    keying.open(MetricsContext())
    *_, (flink_key, data) = keying.flat_map(value)
    return flink_key, decode(data)


def test_only_keying_without_users_code_shares_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[bool] = []
    monkeypatch.setattr(module, "SHARED", SimpleNamespace(join=lambda: joined.append(True)))
    keyed(encode(event()))
    assert joined == []
    keyed(encode(event()), one_core=True)
    assert joined == [True]


def test_event_gets_key_id_and_shard() -> None:
    flink_key, item = keyed(
        encode(event(user="ann", n=3)), key=FromTemplate("{{ user }}"), id=FromTemplate("{{ n }}")
    )
    assert item == KeyedEvent(id="3", key="ann", event=event(user="ann", n=3), read_ms=42)
    assert flink_key == flink_keys(8)[shard_of("ann", 8)]


def test_timeline_begins_at_the_read() -> None:
    _, item = keyed(encode(event()), timeline=True)
    assert item.timeline == Timeline(read_us=42_000)
    assert keyed(encode(event()))[1].timeline is None


def test_position_is_the_default_id_and_id_the_default_key() -> None:
    flink_key, item = keyed(encode(event()))
    assert (item.id, item.key) == ("topic@1", "")
    assert flink_key == flink_keys(8)[shard_of("topic@1", 8)]


def test_every_shard_is_woken_before_the_first_element() -> None:
    keying, context = Keying(shards=8), MetricsContext()
    keying.open(context)
    first, second = (list(keying.flat_map(encode(event(n=n)))) for n in range(2))
    assert first[:-1] == [(flink_key, b"") for flink_key in flink_keys(8)]
    assert first[-1][1] != b""
    assert len(second) == 1
    assert context.group.numbers[SHARD_MARKS].value == 8


@pytest.mark.parametrize("settings", [{}, {"key": lambda _: "k"}, {"id": lambda _: "i"}])
@pytest.mark.parametrize("kind", [Event, DeadLetter])
def test_non_text_position_is_that_records_error(kind: Any, settings: dict[str, Any]) -> None:
    made = {
        Event: Event(raw=b"x", fields={}, position=5),  # type: ignore[arg-type]
        DeadLetter: DeadLetter(raw=b"x", cause="c", detail="d", position=5),  # type: ignore[arg-type]
    }[kind]
    _, letter = keyed({"a": 1}, to_event=lambda row: made, **settings)
    assert (letter.cause, letter.position) == ("bad_record", None)
    assert "position must be text, found int" in letter.detail


def test_to_event_converts_any_element() -> None:
    _, item = keyed({"a": 1}, to_event=lambda row: Event(raw=b"x", fields=row, position="p"))
    assert item.event == Event(raw=b"x", fields={"a": 1}, position="p")


def test_dead_letter_passes_unchanged() -> None:
    letter = DeadLetter(raw=b"\x00", cause="malformed_record", detail="no", attempts=2, position="p")
    assert keyed(encode(letter))[1] == letter
    assert keyed(1, to_event=lambda _: letter)[1] == letter


def fails(error: Exception) -> Callable[[Any], Any]:
    def act(_: Any) -> Any:
        raise error

    return act


KEYLESS = [
    (FromTemplate("{{ missing }}"), "key: field 'missing' is missing; the event has user, nothing, blank"),
    (FromTemplate("{{ nothing }}"), "key: field 'nothing' is null"),
    (FromTemplate("{{ user }}/{{ event.nothing }}"), "key: field 'nothing' is null"),
    (FromTemplate("{{ blank }}"), "key: '{{ blank }}' is empty for this record"),
    (lambda event: None, "key: the key of this record is empty"),
    (lambda event: "", "key: the key of this record is empty"),
    (lambda event: " \t\u2003", "key: the key of this record is empty"),
]


@pytest.mark.parametrize(("key", "detail"), KEYLESS)
def test_record_without_a_key_is_spread_by_its_id(key: Any, detail: str) -> None:
    record = event(user="ann", nothing=None, blank=" \n")
    assert keyed(encode(record), key=key) == keyed(encode(record))


@pytest.mark.parametrize(("key", "detail"), KEYLESS)
def test_record_without_a_required_key_is_a_dead_letter(key: Any, detail: str) -> None:
    record = event(user="ann", nothing=None, blank=" \n")
    _, letter = keyed(encode(record), key=key, needs_key=True)
    assert (letter.raw, letter.cause, letter.id, letter.position) == (record.raw, "no_key", None, "topic@1")
    assert letter.detail.startswith(detail)
    assert (letter.key or "").strip() == ""


@pytest.mark.parametrize("blank", ["", " \n"])
def test_id_is_never_blank(blank: str) -> None:
    _, letter = keyed(encode(event()), id=lambda _: blank)
    assert (letter.cause, letter.detail) == ("bad_record", "the id is empty for this record")


@pytest.mark.parametrize("template", ["{{ missing }}", "{{ nothing }}", "{{ blank }}"])
def test_missing_id_field_is_a_dead_letter(template: str) -> None:
    _, letter = keyed(encode(event(nothing=None, blank=" ")), id=FromTemplate(template))
    assert letter.cause == "template_failed"


@pytest.mark.parametrize("what", ["key", "id"])
@pytest.mark.parametrize(
    ("function", "cause", "detail"),
    [
        (FromTemplate("{{ a / 0 }}"), "template_failed", "ZeroDivision"),
        (fails(TemplateFailed("no such thing")), "template_failed", "no such thing"),
        (fails(KeyError("user")), "bad_record", "KeyError: 'user'"),
        (lambda event: 5, "bad_record", "must be text, found int"),
        (lambda event: "\ud800", "malformed_record", "JSON value"),
        (fails(ValueError("\ud800" + "x" * 10_000)), "bad_record", "ValueError: ?xxx"),
    ],
)
def test_no_key_or_id_is_a_dead_letter_with_input(what: str, function: Any, cause: str, detail: str) -> None:
    _, letter = keyed(encode(event(a=1)), **{what: function})
    assert isinstance(letter, DeadLetter)
    assert (letter.raw, letter.time_ms, letter.position) == (b"raw \xff", 7, "topic@1")
    assert letter.cause == cause
    assert detail in letter.detail
    assert len(letter.detail) <= MAX_DETAIL_CHARS


def test_dead_letter_keeps_whichever_of_key_and_id_worked() -> None:
    ann, none, odd = FromTemplate("{{ user }}"), FromTemplate("{{ missing }}"), (lambda event: "\ud800")
    for settings, known in (
        ({"key": none, "id": ann}, ("ann", None)),
        ({"key": ann, "id": none}, (None, "ann")),
        ({"key": none, "id": odd}, (None, None)),
        ({"key": none}, (None, None)),
    ):
        _, letter = keyed(encode(event(user="ann")), needs_key=True, **settings)
        assert (letter.id, letter.key) == known


@pytest.mark.parametrize(
    ("value", "settings", "raw", "cause"),
    [
        (b"no record", {}, b"no record", "malformed_record"),
        (encode(KeyedEvent("i", "k", event(), 0)), {}, None, "malformed_record"),
        ("a row", {"to_event": fails(IndexError("3"))}, b"'a row'", "bad_record"),
        ("a row", {"to_event": lambda value: value}, b"'a row'", "malformed_record"),
        (5, {}, b"5", "malformed_record"),
    ],
)
def test_non_event_is_a_dead_letter(
    value: Any, settings: dict[str, Any], raw: bytes | None, cause: str
) -> None:
    _, letter = keyed(value, **settings)
    assert isinstance(letter, DeadLetter)
    assert letter.cause == cause
    assert letter.raw == (value if raw is None else raw)


@given(st.binary(max_size=60))
def test_job_survives_any_bytes(data: bytes) -> None:
    _, record = keyed(data)
    assert isinstance(record, KeyedEvent | DeadLetter)
