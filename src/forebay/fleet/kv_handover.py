"""How a replica is asked to prefill a prompt for another one, which then takes over its KV cache."""

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
"""How vLLM's NIXL connector is asked to keep the KV cache of a prompt for another replica, and to say where
it is. Source: vLLM 0.32, docs/features/nixl_connector_usage.md."""
LENGTH_FIELDS = ("max_tokens", "max_completion_tokens", "min_tokens")
STREAM_FIELDS = ("stream", "stream_options")
"""vLLM says where a KV cache is in answers in one piece alone, and refuses the options of a stream there."""
LOOK_S = 1.0
"""How often a request that waits for its prefill looks whether there is still a replica for it."""
MISSING = 10
"""After so many prefills in a row without a KV cache it is told."""

log = logging.getLogger("forebay")
Answer = TypeVar("Answer")


def prefill_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` of a request's body, as a replica that prefills is to get them: the same prompt, and one token
    in one piece."""
    left_out = (*LENGTH_FIELDS, *STREAM_FIELDS)
    kept = {key: value for key, value in fields.items() if key not in left_out}
    return {**kept, "max_tokens": 1, KV_TRANSFER: PREFILL_PARAMS}


def none_prefills(prefill: FleetClient) -> bool:
    """Whether no replica of the fleet works, as far as is known: one that was not looked at yet may. A list
    of them that cannot be read is not waited for."""
    return not prefill.usable and (prefill.probed or bool(prefill.fault))


async def while_some_prefill(
    call: Coroutine[Any, Any, Answer], none_prefills: Callable[[], bool]
) -> Answer | None:
    """What a prefill gives or raises; None, and `call` ended, once there is no replica for it any more.
    Cancelling ends it, too."""
    task = asyncio.ensure_future(call)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=LOOK_S)
            if not task.done() and none_prefills():
                return None
        return task.result()
    finally:
        while not task.done():
            # Before Python 3.11 a task may take one cancellation for something else.
            task.cancel()
            await asyncio.wait((task,), timeout=LOOK_S)
        await asyncio.gather(task, return_exceptions=True)


class MissingKvCaches:
    """Counts prefills that gave no KV cache, and logs once that they are for nothing."""

    def __init__(self) -> None:
        self._missing = 0

    def look(self, replica: str | None, *, given: bool) -> None:
        """One prefill at `replica` is done."""
        self._missing = 0 if given else self._missing + 1
        if self._missing == MISSING:
            log.warning(
                "%s gave no KV cache to take over, %d times, so prompts are prefilled twice: start vLLM there"
                " with a KV connector, or leave out 'prefill'",
                replica,
                MISSING,
            )
