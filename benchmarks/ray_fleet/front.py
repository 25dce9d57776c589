"""A user's program on a Ray cluster: Serve chooses the replica, and each answer is streamed from
its engine's own address."""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import ray
from aiohttp import web
from ray import serve

PATH = "/v1/chat/completions"


async def front(name: str) -> None:
    handle = serve.get_app_handle(name)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            async with handle.choose_replica(body) as chosen:
                url = chosen.replica_metadata["url"]
                async with session.post(url + PATH, json=body) as answer:
                    back = web.StreamResponse(status=answer.status)
                    await back.prepare(request)
                    async for chunk in answer.content.iter_any():
                        await back.write(chunk)
                    return back

        application = web.Application(client_max_size=16 << 20)
        application.router.add_post(PATH, ask)
        runner = web.AppRunner(application, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    ray.init(log_to_driver=False)
    asyncio.run(front(sys.argv[1]))
