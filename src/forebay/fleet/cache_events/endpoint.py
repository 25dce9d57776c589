"""Where a replica publishes its KV-cache events."""

from __future__ import annotations

import re

from yarl import URL

from forebay.errors import SettingError, SetupError

FORM = re.compile(r"tcp://\{host\}:(?:([0-9]{1,5})|\{port([+-][0-9]{1,5})\})")


def check_form(form: str) -> str:
    """`form` as it is. Raises `SettingError` where it is not one that `cache_endpoint` takes."""
    match = FORM.fullmatch(form)
    if match is None or not 0 < abs(int(match[1] or match[2])) < 65536:
        raise SettingError(
            f"kv_events: expected tcp://{{host}}:5557 or tcp://{{host}}:{{port+200}}, found {form[:80]!r}"
        )
    return form


def cache_endpoint(form: str, replica: str) -> str:
    """The address for the replica with this URL.

    `form` is `tcp://{host}:5557`, or `tcp://{host}:{port+200}` with a number that is added to the port of the
    URL. Raises `SettingError` for another form, and where the port is none.
    """
    match = FORM.fullmatch(check_form(form))
    assert match is not None
    url = URL(replica)
    fixed, added = match.groups()
    port = int(fixed) if fixed is not None else (url.port or 0) + int(added)
    if not 0 < port < 65536:
        raise SettingError(f"kv_events: {form} gives port {port} for {replica}; expected one from 1 to 65535")
    host = url.host or ""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def require_zmq() -> None:
    """Raise `SetupError` where what receives the events is not installed."""
    try:
        import zmq.asyncio  # noqa: F401
    except ImportError:
        raise SetupError(
            "kv_events needs pyzmq, which is not installed; run: pip install 'forebay[kv-events]'"
        ) from None
