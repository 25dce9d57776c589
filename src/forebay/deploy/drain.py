"""Waits until a vLLM has no request, before it is stopped.

Runs in the container, with the standard library only. Arguments: the most seconds to wait, vLLM's port.
"""

import re
import sys
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from urllib.error import URLError

NOTICE_S = 15.0
"""Until clients notice that the pod leaves: others than Forebay's routers by DNS, after up to 10 s."""
LOOK_S = 1.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
HELD = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.eE+]+)$", re.MULTILINE)


def held(port: int, host: str = "127.0.0.1") -> float | None:
    """0 if the server has ended, None if unknown."""
    try:
        with DIRECT.open(f"http://{host}:{port}/metrics", timeout=5) as answer:
            found = HELD.findall(answer.read(16 << 20).decode("utf-8", "replace"))
        return sum(map(float, found)) if found else None
    except (OSError, HTTPException, ValueError) as error:
        refused = isinstance(error, URLError) and isinstance(error.reason, ConnectionRefusedError)
        return 0.0 if refused else None


def drain(
    most_s: float,
    port: int,
    notice_s: float = NOTICE_S,
    *,
    host: str = "127.0.0.1",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Wait until no request is left, or for `most_s` if their number is unknown. Returns the seconds
    waited."""
    begin_s = clock()
    while (waited_s := clock() - begin_s) < most_s and (waited_s < notice_s or held(port, host) != 0):
        sleep(LOOK_S)
    return waited_s


if __name__ == "__main__":
    drain(float(sys.argv[1]), int(sys.argv[2]))
