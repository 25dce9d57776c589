"""The access log and the counts of tokens: the cost of each request, and none of its text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.harness.engines import Canned, CannedEngine, answer_of, card

from forebay.errors import SettingError
from forebay.gateway import access_log
from forebay.gateway.access_log import AccessLog

from .conftest import Served, before_engines, serving, spec_of, until

CHAT_PATH = "/v1/chat/completions"
SECRET = "the prompt that nobody may read"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "sesame")
    monkeypatch.setenv("MONITORING_KEY", "watcher")


KEYS = [{"name": "search", "key": {"env": "GATEWAY_KEY"}}]


async def chat(served: Served, key: str = "sesame", **more: Any) -> int:
    body = {"model": "alias", "messages": [{"role": "user", "content": SECRET}], **more}
    headers = {"Authorization": f"Bearer {key}", "X-Request-Id": "id-1"}
    async with served.session.post(served.url + CHAT_PATH, json=body, headers=headers) as response:
        await response.read()
        return response.status


async def test_log_line_has_caller_request_and_cost(tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    engine = CannedEngine([card("m")], {CHAT_PATH: answer_of("one")})
    async with before_engines(engine, keys=KEYS, models={"alias": "m"}, access_log=str(log)) as served:
        assert await chat(served) == 200
        assert await chat(served, "wrong") == 401
        assert await chat(served, model="unknown") == 404
    text = log.read_text()
    assert SECRET not in text
    assert "sesame" not in text
    lines = [orjson.loads(line) for line in text.splitlines()]
    answered, wrong, unknown = lines
    assert answered.pop("time").endswith("+00:00")
    assert 0 < answered.pop("first_byte_s") <= answered.pop("duration_s")
    assert len(answered.pop("engine_id")) == 32
    assert answered == {
        "id": "id-1",
        "key": "search",
        "method": "POST",
        "route": CHAT_PATH,
        "status": 200,
        "outcome": "200",
        "error": None,
        "model": "alias",
        "served_model": "m",
        "replica": engine.url,
        "stream": False,
        "prompt_tokens": 5,
        "cached_tokens": 0,
        "completion_tokens": 3,
        "tokens_counted": True,
    }
    assert (wrong["key"], wrong["status"], wrong["error"]) == ("unknown", 401, "invalid_api_key")
    assert (unknown["key"], unknown["model"], unknown["error"]) == ("search", "unknown", "model_not_found")


async def test_uncounted_tokens_are_estimated(tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    events = (b'data: {"a":1}\n\n', b'data: {"a":2}\n\n', b"data: [DONE]\n\n")
    engine = CannedEngine([card("alias")], {CHAT_PATH: Canned(events=events)})
    async with before_engines(engine, keys=KEYS, access_log=str(log)) as served:
        assert await chat(served, stream=True) == 200
    line = orjson.loads(log.read_text())
    assert (line["stream"], line["tokens_counted"]) == (True, False)
    messages = orjson.dumps([{"role": "user", "content": SECRET}])
    assert (line["prompt_tokens"], line["completion_tokens"]) == (
        (len(messages) + len('{"messages":}')) // 4,
        2,
    )


async def test_rotated_log_file_is_reopened(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "access.jsonl"))
    log.write({"a": 1})
    await until(lambda: (tmp_path / "access.jsonl").read_text() == '{"a":1}\n')
    (tmp_path / "access.jsonl").rename(tmp_path / "old.jsonl")
    log.write({"a": 2})
    await asyncio.get_running_loop().run_in_executor(None, log.close)
    assert (tmp_path / "access.jsonl").read_text() == '{"a":2}\n'
    assert log.lost == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_unwritable_lines_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AccessLog("/dev/full")
    log.write({"a": 1})
    await until(lambda: log.lost == 1)
    monkeypatch.setattr(log._queue, "maxsize", 1)
    log._listener.stop()
    log.write({"a": 2})
    log.write({"a": 3})
    assert log.lost == 2
    assert access_log.MAX_WAITING == 10_000


def test_log_file_that_cannot_be_opened_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"access_log: .*missing/log cannot be opened: No such file"):
        AccessLog(str(tmp_path / "missing" / "log"))


async def test_tokens_are_counted_by_key_and_model() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 7}}
    canned = {CHAT_PATH: Canned(orjson.dumps({"choices": [], "usage": usage}))}
    monitoring = {"key": {"env": "MONITORING_KEY"}}
    engine = CannedEngine([card("m")], canned)
    async with before_engines(engine, keys=KEYS, models={"alias": "m"}, monitoring=monitoring) as served:
        for _ in range(2):
            assert await chat(served) == 200
        headers = {"Authorization": "Bearer watcher"}
        async with served.session.get(served.url + "/metrics", headers=headers) as response:
            text = await response.text()
    found = [line for line in text.splitlines() if line.startswith("forebay_gateway_tokens_total")]
    assert sorted(found) == [
        f'forebay_gateway_tokens_total{{key="search",kind="{kind}",model="m"}} {2 * tokens}.0'
        for kind, tokens in (("cached", 7), ("completion", 4), ("prompt", 9))
    ]


async def test_key_names_are_hidden() -> None:
    engine = CannedEngine([card("alias")], {CHAT_PATH: answer_of("one")})
    async with before_engines(engine, keys=KEYS) as served:
        assert await chat(served) == 200
        labels = 'key="known",kind="prompt",model="alias"'
        assert await served.metric(f"forebay_gateway_tokens_total{{{labels}}}") == 5


async def test_without_a_log_nothing_is_written(tmp_path: Path) -> None:
    async with serving(spec_of(["http://127.0.0.1:9"]), wait_s=0.0) as served:
        assert served.gateway._accounts._log is None
