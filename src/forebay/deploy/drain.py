"""What runs before a vLLM is stopped: wait until no request is left in it.

Mounted into the container on Kubernetes, so it needs Python's standard library only. Kubernetes takes the pod
out of its Services and calls this at the same moment; those who still have the address may send for some
seconds more. Arguments: how many seconds it may take at most, and vLLM's port.
"""

import re
import sys
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from urllib.error import URLError

NOTICE_S = 15.0
"""Until everybody has noticed that the pod is leaving. Forebay's routers do at once; whoever looks up
the name of its Service may take 10 s."""
LOOK_S = 1.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Calls without proxies, whatever the environment names: the server is on this machine."""
HELD = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.eE+]+)$", re.MULTILINE)


def held(port: int, host: str = "127.0.0.1") -> float | None:
    """Requests that run or wait; 0 where the server has ended, None where it does not tell."""
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
    """Wait until no request is left; where the server does not tell, until `most_s` is over. Returns the
    seconds waited: at least `notice_s`, unless `most_s` is less."""
    begin_s = clock()
    while (waited_s := clock() - begin_s) < most_s and (waited_s < notice_s or held(port, host) != 0):
        sleep(LOOK_S)
    return waited_s


if __name__ == "__main__":
    drain(float(sys.argv[1]), int(sys.argv[2]))
