"""When a request no longer waits for its prefill."""

from __future__ import annotations

import asyncio

import pytest

from forebay.fleet import kv_handover
from forebay.fleet.kv_handover import while_some_prefill


async def test_prefill_that_swallows_a_cancellation_still_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As before Python 3.11, where its time is over in the same round of the loop."""
    monkeypatch.setattr(kv_handover, "LOOK_S", 0.01)
    begun, steps = asyncio.Event(), []

    async def prefill() -> None:
        for replica in ("one", "other"):
            steps.append(replica)
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if replica == "other":
                    raise

    asking = asyncio.create_task(while_some_prefill(prefill(), lambda: False))
    await begun.wait()
    asking.cancel()
    await asyncio.wait((asking,))
    assert asking.cancelled()
    assert steps == ["one", "other"]
