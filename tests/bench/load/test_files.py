"""Prompts from files, complete and damaged."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.load import files
from forebay.bench.load.files import read_conversations, read_prompts
from forebay.bench.load.workloads import Exactly
from forebay.errors import SettingError

TALK = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "x" * 40}]}
CHAT = {"messages": [{"role": "user", "content": "Ho"}, {"role": "assistant", "content": "yes"}]}
ONE_SIDED = {"conversations": [{"from": "gpt", "value": "Hello"}, {"from": "human", "value": "Hi"}]}


def write(folder: Path, *lines: object) -> Path:
    path = folder / "mine.jsonl"
    path.write_bytes(
        b"".join(line if isinstance(line, bytes) else orjson.dumps(line) + b"\n" for line in lines)
    )
    return path


def test_lines_are_used_in_order(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        b"\xef\xbb\xbf",
        {"prompt": "a", "output_tokens": 5},
        b"\n",
        {"prompt": [1, 2, 3], "output_tokens": 1, "exact": False, "session": "s", "group": "g"},
    )
    found = read_prompts(path)
    first, second = found.requests(2, seed=1, nonce="n")
    assert (first.prompt, first.output_tokens, first.exact, first.prompt_tokens) == ("a", 5, True, None)
    assert (list(second.prompt), second.prompt_tokens, second.exact) == ([1, 2, 3], 3, False)
    assert (second.index, second.session, second.group) == (1, "s", "g")
    assert found.asked() == {"kind": "jsonl", "source": "mine.jsonl"}
    with pytest.raises(SettingError, match=r"mine\.jsonl holds 2 requests, and 3 were asked for"):
        found.requests(3, seed=1, nonce="n")


@pytest.mark.parametrize("whole", [True, False])
def test_first_question_of_each_conversation_is_used(tmp_path: Path, *, whole: bool) -> None:
    entries = [TALK, ONE_SIDED, CHAT, {"conversations": []}]
    path = write(tmp_path, entries) if whole else write(tmp_path, *entries)
    found = read_conversations(path)
    made = found.requests(2, seed=0, nonce="")
    assert {(one.prompt, one.output_tokens) for one in made} == {("Hi", 10), ("Ho", 1)}
    assert [one.index for one in made] == [0, 1]
    assert not any(one.exact for one in made)
    other = {tuple(one.prompt for one in found.requests(2, seed=seed, nonce="")) for seed in range(20)}
    assert len(other) == 2, "another seed may give another order"
    told = read_conversations(path, Exactly(7), exact=True).requests(2, seed=0, nonce="")
    assert all(one.output_tokens == 7 and one.exact for one in told)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "holds no request"),
        ([b"\n\n"], "holds no request"),
        ([{"prompt": "a", "output_tokens": 1}, b"{\n"], r"line 2: expected a JSON object, found '\{'"),
        ([[1]], "line 1: expected a JSON object"),
        (
            [{"prompt": "a", "output_tokens": 1}, {"prompt": "a", "output_token": 1}],
            r"mine\.jsonl, line 2: unknown key 'output_token'; did you mean 'output_tokens'\?",
        ),
        (
            [{"prompt": "a", "id": 7}],
            "line 1: unknown key 'id'; a line may have prompt, output",
        ),
        ([{"output_tokens": 1}], "line 1: prompt: expected a text or a list"),
        ([{"prompt": "", "output_tokens": 1}], "line 1: prompt"),
        ([{"prompt": [1, -1], "output_tokens": 1}], "line 1: prompt: .* found a list"),
        ([{"prompt": [True], "output_tokens": 1}], "line 1: prompt"),
        ([{"prompt": "a", "output_tokens": 0}], "line 1: output_tokens: expected 1 to .*, found '0'"),
        ([{"prompt": "a", "output_tokens": True}], "line 1: output_tokens"),
        ([{"prompt": "a"}], "line 1: output_tokens: .* found 'None'"),
        ([{"prompt": "a", "output_tokens": 1, "session": 1}], "line 1: session: expected a text"),
        ([{"prompt": "a", "output_tokens": 1, "exact": 1}], "line 1: exact: expected true or false"),
        ([b"\xff\xfe\n"], "line 1: expected a JSON object"),
    ],
)
def test_damaged_lines_are_refused_with_their_number(tmp_path: Path, lines: list[object], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        read_prompts(write(tmp_path, *lines))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "holds no request"),
        ([[]], "holds no request"),
        ([[ONE_SIDED]], "holds no request"),
        ([b"[\n{},\n{"], "line 3: not JSON"),
        ([[TALK, 5]], "conversation 2: expected an object, found '5'"),
        ([[{"text": "a"}]], "conversation 1: expected conversations or messages"),
        ([[{"conversations": "a"}]], "conversation 1: conversations: expected a list of turns"),
        ([[{"conversations": [{"from": "human"}]}]], "conversation 1: .* the texts from and value"),
        ([TALK, {"messages": [{"role": "user", "content": 1}]}], "line 2: .* the texts role and content"),
    ],
)
def test_damaged_conversations_are_refused_with_their_place(
    tmp_path: Path, lines: list[object], says: str
) -> None:
    with pytest.raises(SettingError, match=says):
        read_conversations(write(tmp_path, *lines))


def test_files_that_cannot_be_read_or_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for read in (read_prompts, read_conversations):
        with pytest.raises(SettingError, match="cannot be read: No such file"):
            read(tmp_path / "none")
        with pytest.raises(SettingError, match="cannot be read: Is a directory"):
            read(tmp_path)
    path = write(tmp_path, {"prompt": "a" * 100, "output_tokens": 1}, {"prompt": "a", "output_tokens": 1})
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 60)
    with pytest.raises(SettingError, match="line 1 is longer than 60 bytes"):
        read_prompts(path)
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 50)
    with pytest.raises(SettingError, match=r"has \d+ bytes, more than 50; split it"):
        read_prompts(path)
    monkeypatch.undo()
    monkeypatch.setattr(files, "MAX_REQUESTS", 1)
    with pytest.raises(SettingError, match="holds more than 1 requests; split it"):
        read_prompts(path)
    with pytest.raises(SettingError, match="holds more than 1 conversations"):
        read_conversations(write(tmp_path, [TALK, CHAT]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(["prompt", "output_tokens", "exact", "session", "conversations", "from", "value"])


@given(st.binary(max_size=80) | st.dictionaries(fields, json_values, max_size=4) | st.lists(json_values))
def test_any_file_is_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    try:
        data = content if isinstance(content, bytes) else orjson.dumps(content)
    except orjson.JSONEncodeError:
        return
    path.write_bytes(data)
    for read in (read_prompts, read_conversations):
        with suppress(SettingError):
            assert read(path).found


def test_missing_lengths_are_drawn(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "a"}, {"prompt": "b", "output_tokens": 2})
    made = read_prompts(path, Exactly(9), exact=False).requests(2, seed=0, nonce="")
    assert [(one.output_tokens, one.exact) for one in made] == [(9, False), (2, False)]
