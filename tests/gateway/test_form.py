"""Forms: fields are found as the engine's own parser finds them, and anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.asked import read_asked
from forebay.gateway.form import form_fields
from forebay.gateway.refusal import Refusal

PATH = "/v1/audio/transcriptions"
KIND = b'multipart/form-data; boundary="a b"'

names = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=8)
values = st.binary(max_size=60).filter(lambda value: b"--a b" not in value)


def form_of(fields: list[tuple[str, bytes]], *, file: str = "") -> bytes:
    parts = b""
    for name, value in fields:
        more = '; filename="x.wav"\r\nContent-Type: audio/wav' if name == file else ""
        parts += f'--a b\r\ncontent-disposition: form-data; name="{name}"{more}\r\n\r\n'.encode()
        parts += value + b"\r\n"
    return parts + b"--a b--\r\n"


@given(
    fields=st.lists(st.tuples(names, values), max_size=8), preamble=st.sampled_from([b"", b"\r\n", b"x\r\n"])
)
def test_form_fields_are_parsed(fields: list[tuple[str, bytes]], preamble: bytes) -> None:
    body = preamble + form_of(fields)
    found = [(field.name, body[field.begin : field.end]) for field in form_fields(KIND, body)]
    assert found == fields


pieces = st.binary(max_size=40).map(lambda piece: b"--a b\r\n" + piece + b"\r\n--a b--")


@given(body=st.binary(max_size=200) | pieces)
def test_any_body_is_a_form_or_rejected_with_400(body: bytes) -> None:
    refused: Refusal | None = None
    try:
        form_fields(KIND, body)
    except Refusal as refusal:
        refused = refusal
    assert refused is None or (refused.status, refused.code) == (400, "invalid_form")


@pytest.mark.parametrize(
    "kind", [b"", b"application/json", b"multipart/form-data", b"multipart/form-data; boundary=", b"\xff"]
)
def test_content_type_without_a_boundary_is_rejected(kind: bytes) -> None:
    with pytest.raises(Refusal, match=r"multipart/form-data with|boundary must have"):
        form_fields(kind, b"")


def test_form_has_at_most_a_hundred_parts() -> None:
    with pytest.raises(Refusal, match="more than 100 parts"):
        form_fields(KIND, form_of([("a", b"")] * 101))


def test_known_form_fields_are_read() -> None:
    fields = [("file", b"RIFF\r\n\r\n"), ("model", b"whisper"), ("stream", b"true"), ("prompt", b"names")]
    body = form_of(fields, file="file")
    asked = read_asked(PATH, body, max_depth=64, content_type=KIND)
    assert (asked.model, asked.stream, asked.text, asked.body) == ("whisper", True, "names", body)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ([("file", b"x")], "model"),
        ([("model", b"a"), ("model", b"b")], "model"),
        ([("model", b"a"), ("kv_transfer_params", b"{}")], "kv_transfer_params"),
        ([("model", b"a"), ("vllm_xargs", b'{"ec_transfer_params": "x"}')], "ec_transfer_params"),
    ],
)
def test_invalid_form_is_rejected(fields: list[tuple[str, bytes]], param: str) -> None:
    with pytest.raises(Refusal) as caught:
        read_asked(PATH, form_of(fields), max_depth=64, content_type=KIND)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    "head",
    [
        'content-disposition: form-data; name="model"\r\ncontent-disposition: form-data; name="n"',
        'content-disposition: form-data; name="model"; name="n"',
        "content-disposition: form-data; name=model; name*=utf-8''n",
    ],
)
def test_part_with_two_names_is_rejected(head: str) -> None:
    with pytest.raises(Refusal, match="not one Content-Disposition with one name"):
        form_fields(KIND, f"--a b\r\n{head}\r\n\r\nm\r\n--a b--\r\n".encode())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ([("n", b"0" * 100 + b"5")], "expected a whole number"),
        ([("n", b"1"), ("n", b"5")], "expected the field once"),
        ([("prompt", b"a" * 70_000)], "expected at most 65536 bytes"),
        ([("request_id", b"a")], "expected a field that the gateway passes on"),
    ],
)
def test_ambiguous_form_field_is_rejected(more: list[tuple[str, bytes]], why: str) -> None:
    body = form_of([("model", b"m"), *more, ("file", b"RIFF")], file="file")
    with pytest.raises(Refusal, match=why):
        read_asked(PATH, body, max_depth=64, content_type=KIND)
