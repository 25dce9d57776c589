"""Traces are read within bounds; malformed lines are refused by number."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.planning.simulate import traces
from forebay.planning.simulate.traces import (
    BadLine,
    TraceRequest,
    azure_request,
    mooncake_request,
    read_trace,
)

DATA = Path(__file__).parents[4] / "shared" / "data"
GOOD = b'{"timestamp": 2500, "input_length": 1200, "output_length": 7, "hash_ids": [5, 6, 7]}'
HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(folder: Path, content: bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(content)
    return path


def test_mooncake_keeps_whole_blocks_and_begins_at_zero(tmp_path: Path) -> None:
    later = GOOD.replace(b"2500", b"4000")
    found = read_trace(write(tmp_path, later + b"\n\n" + GOOD + b"\r\n"))
    assert found == [TraceRequest(0.0, 1200, 7, (5, 6)), TraceRequest(1.5, 1200, 7, (5, 6))]


def test_azure_of_both_years(tmp_path: Path) -> None:
    content = (
        HEADER + b"2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05,3,1\n"
        b"2023-11-16 18:17:04.500+00:00,8,2\n"
    )
    found = read_trace(write(tmp_path, content))
    assert [(one.prompt_tokens, one.output_tokens) for one in found] == [(4808, 10), (8, 2), (3, 1)]
    assert [one.arrived_s for one in found] == pytest.approx([0.0, 0.52004, 1.02004], abs=1e-6)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"nonsense", "line 2: expected a JSON object, found 'nonsense'"),
        (b"[1]", "line 2: expected a JSON object"),
        (GOOD.replace(b"2500", b'"x"'), "line 2: timestamp: expected milliseconds"),
        (GOOD.replace(b"2500", b"-1"), "timestamp"),
        (GOOD.replace(b"2500", b"true"), "timestamp"),
        (GOOD.replace(b"1200", b"0"), "input_length: expected a whole number from 1"),
        (GOOD.replace(b"1200", b"12.5"), "input_length"),
        (GOOD.replace(b"7,", b"10000001,"), "output_length"),
        (GOOD.replace(b"[5, 6, 7]", b"[5]"), "hash_ids: expected one per 512 tokens, 3 in all"),
        (GOOD.replace(b"[5, 6, 7]", b"[5, 6, 7, 8]"), "hash_ids"),
        (GOOD.replace(b"[5, 6, 7]", b"[5, -6, 7]"), "hash_ids: expected whole numbers"),
        (GOOD.replace(b"[5, 6, 7]", b"[5, 1152921504606846976, 7]"), "hash_ids: expected whole numbers"),
        (GOOD.replace(b'"hash_ids"', b'"other"'), "hash_ids"),
        (b"\xff\xfe", "line 2: expected a JSON object"),
    ],
)
def test_a_malformed_mooncake_line_is_refused_with_its_number(tmp_path: Path, line: bytes, said: str) -> None:
    with pytest.raises(SettingError, match="line 2") as caught:
        read_trace(write(tmp_path, GOOD + b"\n" + line + b"\n"))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"2023-11-16 18:17:03,1", "expected 3 columns, found 2"),
        (b"yesterday,1,1", "TIMESTAMP: expected YYYY-MM-DD HH:MM:SS.f, found 'yesterday'"),
        (b"2023-13-16 18:17:03,1,1", "TIMESTAMP"),
        (b"2023-11-16 18:17:03,0,1", "ContextTokens: expected a whole number"),
        (b"2023-11-16 18:17:03,1,1e3", "GeneratedTokens: expected a whole number"),
        ("2023-11-16 18:17:03,1,٣".encode(), "GeneratedTokens"),
        (b"2023-11-16 18:17:03,1," + b"9" * 5000, "GeneratedTokens"),
    ],
)
def test_a_malformed_azure_line_is_refused_with_its_number(tmp_path: Path, line: bytes, said: str) -> None:
    with pytest.raises(SettingError, match="line 3") as caught:
        read_trace(write(tmp_path, HEADER + b"2023-11-16 18:17:03,1,1\n" + line + b"\n"))
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_unknown_format_an_empty_file_and_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"line 1: expected a JSON object \(Mooncake\) or the header"):
        read_trace(write(tmp_path, b"a,b\n1,2\n"))
    for content in (b"", b"\n \n", HEADER):
        with pytest.raises(SettingError, match="holds no request"):
            read_trace(write(tmp_path, content))
    with pytest.raises(SettingError, match="cannot be read"):
        read_trace(tmp_path / "missing")


def test_lines_and_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="line 2 is longer than 1048576 bytes"):
        read_trace(write(tmp_path, GOOD + b"\n" + b" " * (traces.MAX_LINE_BYTES + 1)))
    monkeypatch.setattr(traces, "MAX_REQUESTS", 2)
    with pytest.raises(SettingError, match="holds more than 2 requests"):
        read_trace(write(tmp_path, (GOOD + b"\n") * 3))


@given(
    st.binary(max_size=60)
    | st.dictionaries(st.text(max_size=4), st.integers(-(2**63), 2**63)).map(orjson.dumps)
)
def test_only_the_documented_error_is_raised(line: bytes) -> None:
    for parse in (mooncake_request, azure_request):
        try:
            found = parse(line)
        except BadLine:
            continue
        assert found.prompt_tokens >= 1


@given(
    st.integers(0, 10**9),
    st.integers(1, 200_000),
    st.integers(1, 5000),
    st.integers(0, 2**60 - 1),
)
def test_mooncake_format_is_read(when_ms: int, prompt: int, output: int, block: int) -> None:
    line = orjson.dumps(
        {
            "timestamp": when_ms,
            "input_length": prompt,
            "output_length": output,
            "hash_ids": [block] * -(-prompt // 512),
        }
    )
    assert mooncake_request(line) == TraceRequest(when_ms / 1000, prompt, output, (block,) * (prompt // 512))


@pytest.mark.parametrize(
    ("name", "count", "last_s"),
    [("mooncake_conversation.jsonl", 12_031, 3536.999), ("azure_llm_2023_code.csv", 8_819, 3435.948056)],
)
def test_the_published_traces_are_read(name: str, count: int, last_s: float) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"{DATA / name} is not there")
    found = read_trace(DATA / name)
    assert len(found) == count
    assert found[-1].arrived_s == pytest.approx(last_s)
