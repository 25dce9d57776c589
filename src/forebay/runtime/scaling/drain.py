"""Whether a replica that is to go has nothing left to do."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from http import HTTPStatus

from forebay.autoscale.demand import GONE_S, Reports, within
from forebay.engine.launch import Replica
from forebay.engine.launch.replicas import HEALTH_TIMEOUT_S
from forebay.engine.launch.spec import LOOPBACK
from forebay.engine.load import parse_metrics

MOST_BYTES = 4 << 20


def is_idle(replica: Replica) -> bool:
    """Whether it says itself that it has no request. One that says nothing of that may be busy."""
    connection = http.client.HTTPConnection(LOOPBACK, replica.port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read(MOST_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    load, _ = parse_metrics(text, observed_s=0.0)
    return answer.status == HTTPStatus.OK and load.running == 0 and load.waiting == 0


def has_drained(
    reports: Reports, now_ms: int, url: str, left: int, idle: Callable[[], bool] = lambda: True
) -> bool:
    """Whether no request is at `url`, and none will come, since the list `left` is the first without it.

    Every subtask that is not known to have ended has to have said that it goes by that list or a later one
    and has no request there, and the replica itself that it has none: Flink, while it is started anew, says
    nothing.
    """
    counted = within(reports, now_ms, GONE_S).values()
    return all(one.listing >= left and not one.at_replicas.get(url, 0) for one in counted) and idle()
