"""The order of a program, and the parsing of its results."""

from __future__ import annotations

import re

import pytest
from benchmarks.peers.base import PROGRAMS, Named, read_result, requirements_of
from benchmarks.peers.peers import PEERS


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
def test_the_event_that_a_record_names(value: bytes, expected: Named | None) -> None:
    assert read_result(value) == expected


@pytest.mark.parametrize("program", sorted({peer.program for peer in PEERS}))
def test_every_program_asks_for_the_same_answers(program: str) -> None:
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
