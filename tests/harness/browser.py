"""A real browser for tests of pages: Chromium without a window, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from forebay.testing.waiting import wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome")
ANSWER_S = 60.0
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0")
SMALL_TEXTS = """
(() => {
  const small = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const parent = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !parent.getClientRects().length) continue;
    // Of a drawing that is scaled, the size on the screen.
    const scale = parent.getScreenCTM ? parent.getScreenCTM().a : 1;
    const size = parseFloat(getComputedStyle(parent).fontSize) * scale;
    if (size < LEAST) small.push(`${size}: ${walk.currentNode.textContent.trim().slice(0, 40)}`);
  }
  return small;
})()
"""


class Tab:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self.errors: list[str] = []
        self.addresses: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await asyncio.wait_for(self._answers[number], ANSWER_S)

    async def open(self, url: str, *, width: int, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.resize(width)
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        await asyncio.wait_for(self._loaded.wait(), ANSWER_S)

    async def resize(self, width: int) -> None:
        sizes = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **sizes)

    async def value(self, expression: str) -> Any:
        found = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str) -> Any:
        look = (
            f"const look = () => {{ const found = {expression}; found ? done(found) : setTimeout(look, 50) }}"
        )
        return await self.value(f"new Promise(done => {{ {look}; look() }})")

    async def small_texts(self, least_px: float = 11) -> list[str]:
        """Visible texts smaller than that on the screen."""
        found: list[str] = await self.value(SMALL_TEXTS.replace("LEAST", str(least_px)))
        return found

    async def overflow_px(self) -> int:
        """How much wider the page is than the window."""
        return int(await self.value("document.documentElement.scrollWidth - window.innerWidth"))

    async def picture(self, *, height: int = 2000) -> bytes:
        """The page's upper part as PNG."""
        width = await self.value("window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        data = (await self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip))["data"]
        return base64.b64decode(data)

    async def close(self) -> None:
        self._reader.cancel()
        await self._socket.close()

    async def _read(self) -> None:
        async for message in self._socket:
            event = json.loads(message.data)
            parameters = event.get("params", {})
            match event.get("method"):
                case "Page.loadEventFired":
                    self._loaded.set()
                case "Runtime.exceptionThrown":
                    self.errors.append(str(parameters["exceptionDetails"]))
                case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                    self.errors.append(str(parameters["entry"]["text"]))
                case "Runtime.consoleAPICalled" if parameters["type"] == "error":
                    self.errors.append(str(parameters["args"]))
                case "Network.requestWillBeSent":
                    self.addresses.append(parameters["request"]["url"])
            if "id" in event:
                answer = self._answers.pop(event["id"])
                if "error" in event:
                    answer.set_exception(AssertionError(event["error"]))
                else:
                    answer.set_result(event["result"])


@contextmanager
def _chromium() -> Iterator[Callable[[], int]]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium: apt install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [program, *ARGUMENTS, f"--user-data-dir={folder}", "about:blank"]
        file = Path(folder, "DevToolsActivePort")

        def port() -> int:
            wait_until(lambda: file.exists() and "\n" in file.read_text())
            return int(file.read_text().splitlines()[0])

        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield port
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@asynccontextmanager
async def browser() -> AsyncIterator[Tab]:
    """One empty tab; skips the test if there is no Chromium."""
    with _chromium() as port_of:
        port = await asyncio.to_thread(port_of)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                address = next(each for each in await answer.json() if each["type"] == "page")
            socket = await session.ws_connect(address["webSocketDebuggerUrl"], max_msg_size=0)
            tab = Tab(socket)
            try:
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.call(f"{domain}.enable")
                yield tab
            finally:
                await tab.close()
