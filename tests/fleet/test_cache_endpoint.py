"""The address of a replica's events, from its URL."""

from __future__ import annotations

import pytest

from forebay.errors import SettingError
from forebay.fleet.cache_subscriber import cache_endpoint
from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import FixedReplicas


@pytest.mark.parametrize(
    ("form", "replica", "endpoint"),
    [
        ("tcp://{host}:5557", "http://10.0.0.7:8000", "tcp://10.0.0.7:5557"),
        ("tcp://{host}:{port+200}", "http://gpu-1:8001", "tcp://gpu-1:8201"),
        ("tcp://{host}:{port-2443}", "http://gpu-1:8000", "tcp://gpu-1:5557"),
        ("tcp://{host}:5557", "https://gpu-1", "tcp://gpu-1:5557"),
        ("tcp://{host}:5557", "http://[::1]:8000", "tcp://[::1]:5557"),
    ],
)
def test_the_address_of_a_replica(form: str, replica: str, endpoint: str) -> None:
    assert cache_endpoint(form, replica) == endpoint


@pytest.mark.parametrize(
    "form",
    [
        "",
        "tcp://*:5557",
        "tcp://{host}",
        "tcp://{host}:0",
        "tcp://{host}:65536",
        "ipc://{host}:1",
        "tcp://{host}:{port}",
        "tcp://{host}:{port+0}",
        "tcp://{host}:{port+99999}",
        "tcp://{host}:5557/x",
    ],
)
def test_another_form_is_refused(form: str) -> None:
    with pytest.raises(SettingError, match=r"kv_events: expected tcp://\{host\}:5557 or"):
        FleetConfig(FixedReplicas(("http://a:1",)), kv_events=form)


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError, match="gives port 65600 for http://a:65000"):
        cache_endpoint("tcp://{host}:{port+600}", "http://a:65000")
