"""When would this request get its first token on that replica, and what would it cost the others there?

The one estimate that routing and admission share: the prefill that is queued there, less what is done of it,
and this prompt's own, at the speed that first tokens have shown, slowed by what the replica decodes; and how
long those before it are held up. All vectors have one element per replica. docs/fleet.md derives it.
"""

from __future__ import annotations

import numpy as np

from forebay.fleet.routing_request import RoutingRequest, Vector
from forebay.fleet.state import Fleet


def queue_s(fleet: Fleet, now_s: float) -> Vector:
    """Seconds until a replica has prefilled all that was sent to it.

    The first of its prompts has been worked on since the one before was done. One that is overdue is
    expected to take as long again as it is late: a replica that hangs looks worse and worse by itself.
    """
    left: Vector = np.abs(fleet.head_until_s - now_s)
    left *= fleet.busy
    left += fleet.behind_s
    left += fleet.external_s
    return left


def queue_of_s(fleet: Fleet, replica: int, now_s: float) -> float:
    """`queue_s` of one replica."""
    head_s = abs(float(fleet.head_until_s[replica]) - now_s) * float(fleet.busy[replica])
    return head_s + float(fleet.behind_s[replica]) + float(fleet.external_s[replica])


def prefill_s(fleet: Fleet, demand: RoutingRequest, cached: Vector) -> Vector:
    """Seconds that the prompt's uncached part takes once it is at the head of a replica's queue."""
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


def stall_s(fleet: Fleet, work_s: Vector) -> Vector:
    """What a prompt of `work_s` seconds costs the requests before it there, in seconds of waiting.

    Each of them decodes already, or will by then, and is held up for that long. It matters by the share that
    it makes up of the time their answers take: a step is not noticed in hundreds, a prompt of many seconds
    sets the pace of all they still say.
    """
    stalled: Vector = work_s * work_s
    stalled /= work_s + fleet.answer_s
    stalled *= fleet.requests
    return stalled


def fits(fleet: Fleet, tokens: float, replica: int) -> bool:
    """Whether the replica can run one more request that takes `tokens` of its KV cache.

    An idle replica always can: what does not fit there is for the replica itself to refuse.
    """
    requests = fleet.requests[replica]
    if not requests:
        return True
    if requests + fleet.external[replica] >= fleet.max_num_seqs[replica]:
        return False
    return bool(fleet.reserved[replica] + tokens <= fleet.kv_tokens[replica])


def fullness(fleet: Fleet) -> Vector:
    """How full each replica is for requests that only decode: the greater share of its sequences and of its
    KV cache that is taken. A step takes longer with both, and at 1 the next request waits."""
    sequences = (fleet.requests + fleet.external) / fleet.max_num_seqs
    taken: Vector = np.maximum(sequences, fleet.reserved / fleet.kv_tokens)
    return taken
