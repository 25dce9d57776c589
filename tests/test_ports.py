from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from forebay import ports
from forebay.errors import LaunchError
from forebay.ports import PORTS, free_port, free_ports, is_this_machine


def test_each_port_is_free() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    with ExitStack() as stack:
        for port in found:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))


def test_ports_are_outside_the_ephemeral_range() -> None:
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not given.exists():
        pytest.skip("this system does not report its ports for outgoing connections")
    first = int(given.read_text().split()[0])
    if first < PORTS.stop:
        pytest.skip(f"this system gives ports from {first} up to outgoing connections")
    assert free_port() < first


def test_port_in_use_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_ports(2)
    monkeypatch.setattr(ports, "PORTS", range(first, first + 1))
    monkeypatch.setattr(ports, "TRIED", 1)
    with socket.create_server(("127.0.0.1", first)), pytest.raises(LaunchError, match="only 0 of 1 ports"):
        free_port()
    monkeypatch.setattr(ports, "PORTS", range(second, second + 1))
    assert free_port() == second
    assert first in PORTS


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("192.0.2.1", False),
        ("no.such.invalid", False),
    ],
)
def test_local_addresses(host: str, here: bool) -> None:
    if host == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    assert is_this_machine(host) is here
