"""The processes behind one name: two heads while a cluster is being replaced, or the task managers of a
job."""

from __future__ import annotations

import asyncio
import socket

from yarl import URL

from forebay.errors import DeployError


async def each_address(url: str) -> tuple[str, ...]:
    """`url` once for each current address of its host, sorted; unchanged if there is one address.

    IPv4 addresses if there are any. An `https` URL is unchanged, since an address has no certificate, and so
    is anything that is not a URL. Raises `DeployError` if the name has no address.
    """
    try:
        parsed = URL(url)
    except ValueError:
        return (url,)
    if parsed.scheme != "http" or parsed.host is None:
        return (url,)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            parsed.host, parsed.port or 80, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or type(error).__name__
        raise DeployError(f"the name {parsed.host} cannot be resolved: {said}") from None
    # The same process may have an address of each kind.
    kind = socket.AF_INET if any(entry[0] == socket.AF_INET for entry in found) else socket.AF_INET6
    addresses = sorted({str(entry[4][0]) for entry in found if entry[0] == kind})
    if len(addresses) < 2:
        return (url,)
    return tuple(str(parsed.with_host(address)) for address in addresses)
