"""Several replicas of one model as one target: requests go to them by turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from forebay.bench.load.request import LoadRequest
from forebay.bench.targets.base import TRIAL, OnPiece, Target


class SpreadTarget:
    """A `Target`: request i goes to replica i modulo their number, as a balancer that knows nothing does."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = tuple(targets)

    @property
    def name(self) -> str:
        return ", ".join(target.name for target in self._targets)

    @asynccontextmanager
    async def open(
        self, connections: int = 1, trials: Sequence[LoadRequest] = (TRIAL,)
    ) -> AsyncIterator[None]:
        """Opens all of them, each with its share of `connections`; raises what the first that fails does."""
        share = -(-connections // len(self._targets))
        async with AsyncExitStack() as opened:
            for target in self._targets:
                await opened.enter_async_context(target.open(share, trials))
            yield

    async def answer(self, request: LoadRequest, on_piece: OnPiece) -> None:
        await self._targets[request.index % len(self._targets)].answer(request, on_piece)
