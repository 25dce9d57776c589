"""When a request would get its first token on a replica, and how long it would delay the others there.

Vectors have one element per replica. docs/fleet.md derives it. Imports only numpy: Ray nodes have little
more.
"""

from __future__ import annotations

import numpy as np

from forebay.fleet.replica_table import ReplicaTable
from forebay.fleet.routing_request import RoutingRequest, Vector


def queue_s(fleet: ReplicaTable, now_s: float) -> Vector:
    """Seconds until a replica has prefilled everything that was sent to it.

    An overdue prompt is expected to take as long again as it is late, so a hanging replica looks worse and
    worse.
    """
    left: Vector = np.abs(fleet.head_until_s - now_s)
    left *= fleet.busy
    left += fleet.behind_s
    left += fleet.external_s
    return left


def queue_of_s(fleet: ReplicaTable, replica: int, now_s: float) -> float:
    head_s = abs(float(fleet.head_until_s[replica]) - now_s) * float(fleet.busy[replica])
    return head_s + float(fleet.behind_s[replica]) + float(fleet.external_s[replica])


def prefill_s(fleet: ReplicaTable, demand: RoutingRequest, cached: Vector) -> Vector:
    speed, prompt = fleet.fit.speed, demand.prompt_tokens
    per_token: Vector = fleet.context * speed.context_s
    per_token += fleet.decoding * speed.decode_s
    if cached is fleet.nothing:
        per_token += speed.token_s + speed.pair_s * (prompt / 2)
        per_token *= prompt
    else:
        uncached = np.maximum(prompt - cached, 1.0)
        per_token += (speed.token_s + speed.pair_s * prompt) - (speed.pair_s / 2) * uncached
        per_token *= uncached
    per_token += speed.request_s
    per_token *= fleet.pace
    return per_token


def stall_s(fleet: ReplicaTable, work_s: Vector) -> Vector:
    """Seconds of waiting that a prompt of `work_s` costs the requests before it, by its share of their time:
    one step is negligible among hundreds, a prefill of many seconds is not.
    """
    stalled: Vector = work_s * work_s
    stalled /= work_s + fleet.answer_s
    stalled *= fleet.requests
    return stalled


def fits(fleet: ReplicaTable, tokens: float, replica: int) -> bool:
    """Whether the KV cache has room for a request of `tokens`; an idle replica always has."""
    requests = fleet.requests[replica]
    if not requests:
        return True
    if requests + fleet.external[replica] >= fleet.max_num_seqs[replica]:
        return False
    return bool(fleet.reserved[replica] + tokens <= fleet.kv_tokens[replica])


def fullness(fleet: ReplicaTable) -> Vector:
    """The larger of the shares of sequences and KV cache in use. At 1 the next request waits."""
    sequences = (fleet.requests + fleet.external) / fleet.max_num_seqs
    taken: Vector = np.maximum(sequences, fleet.reserved / fleet.kv_tokens)
    return taken


def least(costs: Vector, fleet: ReplicaTable) -> int:
    if fleet.all_available:
        return int(costs.argmin())
    return int(np.where(fleet.available, costs, np.inf).argmin())


class ExpectedTtft:
    """Chooses the least sum of the expected time to first token and the cost to other requests.

    A hot prefix moves once the queue at the cached replica costs more than a prefill elsewhere.
    """

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
        work_s = prefill_s(fleet, demand, cached)
        costs = stall_s(fleet, work_s)
        costs += work_s
        costs += queue_s(fleet, now_s)
        return least(costs, fleet)
