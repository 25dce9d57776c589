"""A list of replicas that grows from nothing and shrinks to nothing again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forebay.engine import Deadline
from forebay.errors import SettingError
from forebay.fleet.config import FleetConfig
from forebay.fleet.listing import Listing, ScaledReplicas, read_listing, write_listing
from forebay.testing.script import Fixed


def test_a_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "replicas.json"
    for listing in (Listing(()), Listing(("http://127.0.0.1:8100", "http://127.0.0.1:8101"), 7, 3)):
        write_listing(path, listing)
        found = read_listing(path)
        assert (found, found.version, found.wanted) == (listing, listing.version, listing.wanted)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{}", b'{"replicas": 1, "version": 1, "wanted": 1}',
        b'{"replicas": ["nonsense"], "version": 1, "wanted": 1}',
        b'{"replicas": [1], "version": 1, "wanted": 1}',
        b'{"replicas": [], "version": "1", "wanted": 1}',
        b" " * (1 << 20),
    ],
)  # fmt: skip
def test_what_is_no_list_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "replicas.json").write_bytes(content)
    with pytest.raises(SettingError):
        read_listing(tmp_path / "replicas.json")


async def test_requests_wait_while_there_is_no_replica_and_one_that_leaves_ends_what_it_has(
    fleet_of: Any, ask: Any, wait_for: Any, tmp_path: Path
) -> None:
    path = tmp_path / "replicas.json"
    write_listing(path, Listing(()))
    async with fleet_of(2) as fakes:
        first, second = (replica.url for replica in fakes.replicas)
        engine = type(fakes.engine)(
            FleetConfig(ScaledReplicas(str(path), every_s=0.01), model="m", check_s=0.05, scaled=True)
        )
        client = engine.client
        try:
            deadline = Deadline(60.0)
            clock = asyncio.get_running_loop()
            deadline.wait(clock.time(), counts=True)
            held = asyncio.ensure_future(engine.complete(ask(1), timeout_s=60.0, deadline=deadline))
            await wait_for(lambda: client.waiting == 1)
            assert deadline.left_s(clock.time() + 3600) > 0, "with nothing to send it to, no time counts"
            write_listing(path, Listing((first, second), 1, 2))
            await wait_for(lambda: client.usable == 2)
            assert (await held).text
            assert (client.listing, client.wanted) == (1, 2)
            fakes.change(0, delay=Fixed(0.3))
            fakes.change(1, delay=Fixed(0.3))
            both = [asyncio.ensure_future(engine.complete(ask(n), timeout_s=60.0)) for n in range(2, 6)]
            await wait_for(lambda: min(client.at_replicas().values()) > 0)
            write_listing(path, Listing((second,), 2, 1))
            await wait_for(lambda: client.listing == 2)
            assert client.at_replicas()[first] > 0, "it is told of until its last request has ended"
            assert all(found.text for found in await asyncio.gather(*both))
            await wait_for(lambda: first not in client.at_replicas())
            write_listing(path, Listing((), 3, 0))
            await wait_for(lambda: client.listing == 3)
            assert client.at_replicas() == {}
        finally:
            await engine.close()
