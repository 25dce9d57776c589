"""The page in a real browser: readable on a phone, without errors, hostile contents stay text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.harness.browser import Tab, browser
from tests.pipeline.live.runs import ATTACK, Run, letter, result, trend
from tests.pipeline.live.test_view import NOW

from forebay.pipeline.live.server import PageServer

pytestmark = pytest.mark.heavy

WIDTHS = (390, 1400)


@asynccontextmanager
async def shown(run: Run) -> AsyncIterator[tuple[Tab, str]]:
    server = PageServer(run.page)
    with closing(server):
        server.start()
        async with browser() as tab:
            yield tab, server.url


def filled(folder: Path) -> Run:
    run = Run(folder, application={"type": "trends"}, replicas=3)
    for second in range(40):
        now = replace(
            NOW, elapsed_s=float(second), results=10 * second, read=30 * second, failed={"late": second}
        )
        run.page.watch(replace(now, dead_letters=second, engine_failure=ATTACK))
    run.commit("results", *(trend(n, f"storm {n}", (ATTACK, "y" * 300)) for n in range(5)))
    run.commit("results", *(result(n, key=ATTACK, answer="z" * 300, text=ATTACK) for n in range(50)))
    run.commit("letters", letter("late", ATTACK, "w" * 2000))
    return run


async def test_page_is_readable_at_both_widths_without_errors(tmp_path: Path) -> None:
    async with shown(filled(tmp_path)) as (tab, url):
        for width in WIDTHS:
            for dark in (False, True):
                await tab.open(url, width=width, dark=dark)
                assert "to look at" in await tab.until("document.querySelector('.verdict').textContent")
                assert await tab.small_texts() == []
                assert await tab.overflow_px() <= 0
                back = await tab.value("getComputedStyle(document.body).backgroundColor")
                assert (back == "rgb(255, 255, 255)") != dark
        assert await tab.value("document.title") == "tickets"
        assert await tab.value("document.querySelectorAll('main img, main script').length") == 0
        assert tab.errors == []
        assert all(address.startswith(url) for address in tab.addresses)


async def test_page_follows_the_run_and_keeps_typed_text(tmp_path: Path) -> None:
    run = filled(tmp_path)
    async with shown(run) as (tab, url):
        await tab.open(url, width=1400)
        await tab.until("document.querySelectorAll('[data-part=results] .card').length === 30")
        await tab.value(
            "const box = document.querySelector('input.search'); box.value = 'special'; box.focus()"
        )
        run.commit("results", result(99, answer="a special answer"))
        run.page.watch(replace(NOW, elapsed_s=77.0))
        await tab.until("document.querySelector('[data-part=status]').textContent.includes('77 s')")
        await tab.until("document.querySelectorAll('[data-part=results] .card').length === 1")
        assert await tab.value("document.activeElement === document.querySelector('input.search')")
        assert tab.errors == []


async def test_search_changed_while_waiting_is_repeated(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.commit("results", result(1, answer="special"), result(2, answer="spare"), result(3))
    async with shown(run) as (tab, url):
        await tab.open(url, width=1400)
        await tab.until("document.querySelectorAll('[data-part=results] .card').length === 3")
        await tab.value(
            "const box = document.querySelector('input.search'), get = window.fetch;"
            "const type = (text) => { box.value = text; box.dispatchEvent(new Event('input')); };"
            "window.fetch = async (address) => {"
            "  const answer = await get(address);"
            "  if (address.endsWith('search=sp')) type('special');"
            "  return answer;"
            "};"
            "type('sp')"
        )
        await tab.until("document.querySelectorAll('[data-part=results] .card').length === 1")
        assert tab.errors == []


async def test_the_end_of_the_run_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.pipeline.live.server.LAST_S", 60.0)
    run = filled(tmp_path)
    server = PageServer(run.page)
    server.start()
    async with browser() as tab:
        await tab.open(server.url, width=390)
        await tab.until("document.querySelector('[data-part=status]').textContent.includes('39 s')")
        await tab.until("events.readyState === EventSource.OPEN")
        await tab.value("Object.defineProperty(document, 'hidden', {value: true}) && 1")
        run.page.watch(replace(NOW, state="FINISHED", elapsed_s=78.0))
        closed = asyncio.get_running_loop().run_in_executor(None, server.close)
        await tab.until("document.querySelector('#connection').textContent.includes('The run has ended')")
        status = await tab.value("document.querySelector('[data-part=status]').textContent")
        assert "finished after 78 s" in status
        await closed
        assert tab.errors == []


@pytest.mark.parametrize("width", WIDTHS)
async def test_page_as_a_file_is_self_contained(tmp_path: Path, width: int) -> None:
    file = tmp_path / "page.html"
    file.write_text(filled(tmp_path).page.page(live=False))
    async with browser() as tab:
        await tab.open(file.as_uri(), width=width)
        await tab.value(
            "const box = document.querySelectorAll('input.filter'); box[1].value = 't-17';"
            "box[1].dispatchEvent(new Event('input', {bubbles: true}))"
        )
        assert await tab.value(
            "[...document.querySelectorAll('[data-part=results] .card')].every(one => one.hidden)"
        )
        assert not await tab.value("document.querySelector('[data-part=application] .card').hidden")
        assert await tab.small_texts() == []
        assert await tab.overflow_px() <= 0
        assert tab.errors == []
        assert tab.addresses == [file.as_uri()]
