"""The order of a program, and the parsing of its results."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest
from benchmarks.peers.base import ID_IN_PROMPT, PROGRAMS, Named, Order, event_of, read_result, requirements_of
from benchmarks.peers.peers import PEERS
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"id": "event-17", "answer": "rain"}', Named("event", 17, True)),
        (b'{"id": "event-17", "answer": ""}', Named("event", 17, True)),
        (b'{"id": "event-17", "answer": null}', Named("event", 17, False)),
        (b'{"fields": {"id": "warm-2"}, "answer": {"word": "rain"}}', Named("warm", 2, True)),
        (b'{"cause": "refused", "fields": {"id": "event-3"}}', Named("event", 3, False)),
        (b'{"id": "other-17", "answer": "rain"}', None),
        (b'["event-17"]', None),
        (b"event-17", None),
        (b"", None),
    ],
)
def test_event_of_a_record(value: bytes, expected: Named | None) -> None:
    assert read_result(value) == expected


@pytest.mark.parametrize("program", sorted({peer.program for peer in PEERS}))
def test_every_program_requests_the_same_answers(program: str) -> None:
    """Otherwise some have shorter answers and less work for the engine."""
    files = list(PROGRAMS.glob(program.replace("_job", "*")))
    for file in files:
        assert re.search(r"""(order|event\.input)\[["']system["']\]""", file.read_text()), file.name
    text = "".join(file.read_text() for file in files)
    assert re.search(r"""\btemperature["']?\s*[=:]\s*'?0(\.0)?\b""", text)
    assert "max_tokens" in text


def test_every_peer_has_its_program_and_what_its_environment_holds() -> None:
    for peer in PEERS:
        assert (PROGRAMS / peer.program).is_file(), peer.name
        assert peer.docs, peer.name
        if peer.requirements is not None:
            lines = requirements_of(peer).read_text().splitlines()
            assert lines, peer.name
            assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^=\s]+", line) for line in lines), peer.name


@given(st.binary(max_size=60))
def test_no_record_stops_the_measurement(value: bytes) -> None:
    read_result(b"event-1 " + value)


@given(st.integers(min_value=0))
def test_the_engine_finds_an_event_in_its_prompt(index: int) -> None:
    found = re.findall(ID_IN_PROMPT, event_of(f"event-{index}")["prompt"])
    assert found == [f"event-{index}"]


def test_order_round_trip(tmp_path: Path) -> None:
    told = ("b", "e", "r", "l", "http://e", "m", "Be short.", 16, 8, "/state", 81)
    order = Order(*told, jars=("a.jar",), options={"n": 1})
    order.write(tmp_path / "order.json")
    found = orjson.loads((tmp_path / "order.json").read_bytes())
    assert found["restore_from"] is None
    assert (found["jars"], found["options"], found["capacity"]) == (["a.jar"], {"n": 1}, 8)
