"""How to ask a replica to prefill a prompt for another one, which then takes over its KV cache."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from forebay.engine.protocol import KV_TRANSFER
from forebay.fleet.client import FleetClient
from forebay.records import JSON

PREFILL_PARAMS: dict[str, JSON] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""Parameters that make vLLM's NIXL connector keep a KV cache and return its location (vLLM 0.32,
docs/features/nixl_connector_usage.md)."""
LENGTH_FIELDS = ("max_tokens", "max_completion_tokens", "min_tokens")
STREAM_FIELDS = ("stream", "stream_options")
"""vLLM returns the location only with answers in one piece, and then rejects the options of a stream."""
LOOK_S = 1.0
"""How often a request that waits for its prefill checks that there is still a replica for it."""
MISSING = 10
"""Prefills in a row without a KV cache after which a warning is logged."""

log = logging.getLogger("forebay")
Answer = TypeVar("Answer")


def prefill_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body for a prefilling replica: the same prompt, and one token in one piece."""
    left_out = (*LENGTH_FIELDS, *STREAM_FIELDS)
    kept = {key: value for key, value in fields.items() if key not in left_out}
    return {**kept, "max_tokens": 1, KV_TRANSFER: PREFILL_PARAMS}


def none_prefills(prefill: FleetClient) -> bool:
    """Whether no replica of the fleet works. One that was not checked yet may; an unreadable list counts as
    none."""
    return not prefill.usable and (prefill.probed or bool(prefill.fault))


async def while_some_prefill(
    call: Coroutine[Any, Any, Answer], none_prefills: Callable[[], bool]
) -> Answer | None:
    """Return the result of a prefill, or None, with `call` cancelled, if there is no replica for it any more.
    Cancelling cancels `call`, too."""
    task = asyncio.ensure_future(call)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=LOOK_S)
            if not task.done() and none_prefills():
                return None
        return task.result()
    finally:
        while not task.done():
            # Before Python 3.11 a task may lose a cancellation.
            task.cancel()
            await asyncio.wait((task,), timeout=LOOK_S)
        await asyncio.gather(task, return_exceptions=True)


class MissingKvCaches:
    """Counts prefills without a KV cache, and logs once that they are useless."""

    def __init__(self) -> None:
        self._missing = 0

    def look(self, replica: str | None, *, given: bool) -> None:
        """Count one prefill at `replica`."""
        self._missing = 0 if given else self._missing + 1
        if self._missing == MISSING:
            log.warning(
                "%s gave no KV cache to take over, %d times, so prompts are prefilled twice: start vLLM there"
                " with a KV connector, or leave out 'prefill'",
                replica,
                MISSING,
            )
