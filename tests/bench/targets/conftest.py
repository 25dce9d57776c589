"""Fixtures for the tests of all targets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from forebay.bench.records import LoadRequest
from forebay.bench.targets.base import Piece, Target

Ask = Callable[..., list[Piece]]


@pytest.fixture
def ask() -> Ask:
    """Opens a target, sends one request and returns the pieces of its answer."""

    def run(target: Target, request: LoadRequest, seen: list[Piece] | None = None) -> list[Piece]:
        pieces: list[Piece] = [] if seen is None else seen

        async def one() -> None:
            async with target.open():
                await asyncio.wait_for(target.answer(request, pieces.append), 20)

        asyncio.run(one())
        return pieces

    return run
