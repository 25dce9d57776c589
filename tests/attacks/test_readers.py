"""Whatever reads what others wrote raises errors of Forebay's only, in bounded time and memory.

A few inputs each by themselves; with `make test-attacks` some thousand each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.schema_registry import ScriptedRegistry

from forebay.errors import ForebayError

from .bounds import within_bounds
from .mutations import mutated
from .readers import READERS, SCHEMAS, Read, Reader

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with ScriptedRegistry(SCHEMAS) as serving:
        yield serving.url


@pytest.fixture(scope="module", params=READERS, ids=repr)
def reader(
    request: pytest.FixtureRequest, registry: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Reader, Read]:
    chosen: Reader = request.param
    return chosen, chosen.make(tmp_path_factory.mktemp("reader"), registry)


def test_valid_inputs_are_read(reader: tuple[Reader, Read]) -> None:
    about, read = reader
    for seed in about.seeds:
        read(seed)


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_invalid_inputs_are_rejected(reader: tuple[Reader, Read], data: st.DataObject) -> None:
    about, read = reader
    raw = data.draw(mutated(about.seeds, about.words), label="input")
    with within_bounds(), suppress(ForebayError):
        read(raw)


FOUND = [
    ("an answer by a schema", b'{"a": "' + b"x" * 28 + b'!"}'),
    ("a pipeline", b'name: "\\U99999999"'),
    ("a trace of Mooncake", b'{"timestamp": ' + b"[" * 1000 + b"]" * 1000 + b"}\n"),
    ("a feed's place", b"[]"),
    ("a feed's place", b"[5, []]"),
    ("a key's memory", b"\xc0"),
    ("a key's memory", b"\x96\x03\x01\xc0\x90\x80\x05"),
    ("a turn", b"\x91\x03"),
    ("a key's summaries", b"\x92\x02\x00"),
    ("a request in a checkpoint", b"\xc1"),
    ("a request in a checkpoint", b"\x91\x01"),
]
"""Inputs that once raised another error, or took too long."""


@pytest.mark.parametrize(("name", "raw"), FOUND)
def test_earlier_findings_stay_fixed(name: str, raw: bytes, tmp_path: Path, registry: str) -> None:
    about = next(each for each in READERS if each.name == name)
    with within_bounds(), pytest.raises(ForebayError):
        about.make(tmp_path, registry)(raw)
