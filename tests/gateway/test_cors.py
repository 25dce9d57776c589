"""Web pages: those that are listed may call, as browsers understand it, and others may not."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.errors import SettingError

from .conftest import CHAT, before, spec_of

PATH = "/v1/chat/completions"
PAGE, OTHER = "https://app.example.com", "https://other.example.com"
QUESTION = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "sesame")


KEYS = [{"name": "a", "key": {"env": "GATEWAY_KEY"}}]


@pytest.mark.parametrize("keys", [[], KEYS])
async def test_listed_origin_may_call(keys: list[dict[str, Any]]) -> None:
    async with before(cors=[PAGE], keys=keys) as (served, _):
        url = served.url + PATH
        async with served.session.options(url, headers={"Origin": PAGE, **QUESTION}) as response:
            assert response.status == 200
            assert response.headers["Access-Control-Allow-Origin"] == PAGE
            assert response.headers["Access-Control-Allow-Methods"] == "GET, POST"
            assert response.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
        headers = {"Origin": PAGE, "Authorization": "Bearer sesame"}
        async with served.session.post(url, json=CHAT, headers=headers) as response:
            assert response.status == 200
            assert response.headers["Access-Control-Allow-Origin"] == PAGE
            assert response.headers["Access-Control-Expose-Headers"] == "x-request-id, retry-after"
            assert response.headers["Vary"] == "origin"


async def test_listed_origin_gets_the_reason_of_a_refusal() -> None:
    async with before(cors=[PAGE], keys=KEYS) as (served, _):
        response = await served.session.post(served.url + PATH, json=CHAT, headers={"Origin": PAGE})
        assert response.status == 401
        assert response.headers["Access-Control-Allow-Origin"] == PAGE


@pytest.mark.parametrize("cors", [[], [PAGE]])
async def test_other_origins_are_rejected(cors: list[str]) -> None:
    async with before(cors=cors) as (served, replicas):
        url, headers = served.url + PATH, {"Origin": OTHER}
        async with served.session.options(url, headers={**headers, **QUESTION}) as response:
            assert response.status == 405
            assert "Access-Control-Allow-Origin" not in response.headers
        async with served.session.post(url, json=CHAT, headers=headers) as response:
            assert response.status == 403
            assert "Access-Control-Allow-Origin" not in response.headers
            assert response.headers.get("Vary") == ("origin" if cors else None)
        assert not replicas[0].report().calls


async def test_any_origin_may_call_with_a_key() -> None:
    async with before(cors=["*"], keys=KEYS) as (served, _):
        headers = {"Origin": OTHER, "Authorization": "Bearer sesame"}
        async with served.session.post(served.url + PATH, json=CHAT, headers=headers) as response:
            assert response.status == 200
            assert response.headers["Access-Control-Allow-Origin"] == OTHER


@pytest.mark.parametrize(
    ("cors", "words"),
    [(["*"], r"cors: expected keys with '\*'"), (["app.example.com"], "cors"), (["https://a/b"], "cors")],
)
def test_invalid_origins_are_rejected(cors: list[str], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        spec_of(["http://127.0.0.1:1"], cors=cors)
