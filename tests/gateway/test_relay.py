"""What goes through unchanged: the answer's bytes, the request's body, ids and traces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from aiohttp import web

from forebay.gateway.wire import usage_in
from forebay.records import Usage

from .conftest import CHAT, serving, spec_of

ODD_BODY = orjson.dumps(CHAT)[:-1] + b' , "unknown" : 1.50e0 ,"model":"fake" }\n'
EVENTS = [
    b'data: {"odd" :  1}\r\n\r\n',
    b": a comment\n\n",
    b"event: x\ndata: \xc3",
    b"\xa4\n\n",
    b"data: [DONE]\n\n",
]


@asynccontextmanager
async def recorder(
    seen: list[web.Request], bodies: list[bytes], *, gate: asyncio.Event | None = None
) -> AsyncIterator[str]:
    """A replica that keeps what it was sent, and answers in an odd way: from its second piece on when `gate`
    is open.
    """

    async def chat(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        bodies.append(await request.read())
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "X-Engine": "odd", "Set-Cookie": "a=b"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for event in EVENTS:
            await response.write(event)
            await asyncio.sleep(0)
            if gate is not None:
                await gate.wait()
        return response

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake"}]})

    async def healthy(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat),
            web.get("/v1/models", models),
            web.get("/health", healthy),
            web.get("/metrics", healthy),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_answer_and_body_are_relayed_unchanged() -> None:
    seen: list[web.Request] = []
    bodies: list[bytes] = []
    async with (
        recorder(seen, bodies) as url,
        serving(spec_of([url], relay={"headers": ["x-own"], "fields": ["unknown"]})) as served,
    ):
        headers = {
            "X-Request-Id": "mine-1",
            "Authorization": "Bearer sk-client",
            "Cookie": "c=d",
            "Connection": "keep-alive, X-Hop",
            "X-Hop": "1",
            "X-Own": "kept",
            "X-Data-Parallel-Rank": "1",
            "X-Vllm-Priority": "-9",
            "X-Session-ID": "another's",
            "X-Gateway-Inference-Objective": "critical",
            "OpenAI-Beta": "x=1",
        }
        async with served.session.post(
            served.url + "/v1/chat/completions", data=ODD_BODY, headers=headers
        ) as response:
            answer = await response.read()
        assert answer == b"".join(EVENTS)
        assert bodies == [orjson.dumps(orjson.loads(ODD_BODY))]
        assert response.headers["X-Request-Id"] == "mine-1"
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["X-Engine"] == "odd"
        assert "Set-Cookie" not in response.headers
        assert len(response.headers.getall("Date")) == 1
        sent = seen[0].headers
        assert (sent["OpenAI-Beta"], sent["X-Own"]) == ("x=1", "kept")
        assert sent["X-Request-Id"] != "mine-1"
        assert {"Authorization", "Cookie", "X-Hop", "X-Data-Parallel-Rank"}.isdisjoint(sent)
        assert {"X-Vllm-Priority", "X-Session-ID", "X-Gateway-Inference-Objective"}.isdisjoint(sent)


async def test_request_without_an_id_gets_one() -> None:
    seen: list[web.Request] = []
    async with recorder(seen, []) as url, serving(spec_of([url])) as served:
        for given in (None, "x" * 500, "ümlaut"):
            headers = {} if given is None else {"X-Request-Id": given}
            async with served.session.post(
                served.url + "/v1/chat/completions", json=CHAT, headers=headers
            ) as response:
                await response.read()
            made = response.headers["X-Request-Id"]
            assert len(made) == 32
            assert seen[-1].headers["X-Request-Id"] == made


async def test_client_trace_continues_without_opentelemetry() -> None:
    seen: list[web.Request] = []
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with recorder(seen, []) as url, serving(spec_of([url])) as served:
        headers = {"traceparent": parent, "tracestate": "a=b"}
        async with served.session.post(
            served.url + "/v1/chat/completions", json=CHAT, headers=headers
        ) as response:
            await response.read()
        assert (seen[0].headers["traceparent"], seen[0].headers["tracestate"]) == (parent, "a=b")


def test_usage_is_parsed_from_the_end_of_an_answer() -> None:
    tail = b'{"completion_tokens":1}"usage":{"prompt_tokens":7,"completion_tokens": 5,"cached_tokens":3}}'
    assert usage_in(tail, 9) == Usage(7, 5, 3)
    assert usage_in(b"data: [DONE]", 9) == Usage(0, 9, 0)
