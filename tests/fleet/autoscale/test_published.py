from __future__ import annotations

import pytest

from forebay.errors import SettingError
from forebay.fleet.autoscale.base import Backlog, ReplicaSpeed, Signals, Tokens
from forebay.fleet.autoscale.proportional import BatchedTokens, KvCacheUse, PlannedCapacity, QueueLength


def waiting(number: float, now_s: float = 0.0, ready: int = 2) -> Signals:
    return Signals(now_s, ready=ready, backlog=(Backlog(5.0, Tokens(number, 100 * number, 10 * number)),))


def test_queue_brings_the_mean_to_its_target() -> None:
    assert QueueLength(10, hold_s=0).decide(waiting(60)).wanted == 6
    assert QueueLength(10, hold_s=0).decide(waiting(21)).wanted == 2  # within a tenth
    assert QueueLength(10, hold_s=0).decide(waiting(25, ready=0)).wanted == 3


def test_queue_knows_nothing_once_the_queue_is_empty() -> None:
    """Its fault: ten busy replicas that keep up look like none that are needed."""
    busy = Signals(0.0, ready=10, running=1000.0, running_tokens=1e6, kv_usage=0.9)
    assert QueueLength(10, hold_s=0).decide(busy).wanted == 1


def test_batch_looks_alike_whatever_waits_behind_it() -> None:
    few, many = (Signals(0.0, ready=2, running_tokens=2e5, backlog=waiting(n).backlog) for n in (1, 10**6))
    assert BatchedTokens(50_000, hold_s=0).decide(few).wanted == 4
    assert BatchedTokens(50_000, hold_s=0).decide(many).wanted == 4


def test_kv_cache_goes_by_its_share() -> None:
    assert KvCacheUse(0.5, hold_s=0).decide(Signals(0.0, ready=4, kv_usage=0.9)).wanted == 8
    assert KvCacheUse(0.5, hold_s=0).decide(Signals(0.0, ready=4, kv_usage=0.1)).wanted == 1


def test_capacity_goes_by_what_arrives() -> None:
    policy = PlannedCapacity(ReplicaSpeed(1e-3, 1e-2), use=0.5, window_s=60, hold_s=0)
    found = 0
    for at in range(0, 120, 5):
        arrived = (("default", Tokens(5, 5000, 500)),)  # ten seconds of work in five
        found = policy.decide(Signals(float(at), ready=1, arrived=arrived)).wanted
    assert found == 4


@pytest.mark.parametrize("policy", [QueueLength(10, 60.0), KvCacheUse(0.5, 60.0)])
def test_replicas_go_only_after_the_hold(policy: QueueLength | KvCacheUse) -> None:
    high = Signals(0.0, ready=4, kv_usage=1.0, backlog=waiting(80).backlog)
    assert policy.decide(high).wanted == 8
    assert policy.decide(Signals(60.0, ready=4)).wanted == 8
    assert policy.decide(Signals(61.0, ready=4)).wanted == 1


def test_targets_out_of_range_are_refused() -> None:
    for wrong in (
        lambda: QueueLength(0),
        lambda: BatchedTokens(-1),
        lambda: KvCacheUse(float("nan")),
        lambda: QueueLength(1, hold_s=-1),
        lambda: PlannedCapacity(ReplicaSpeed(1, 1), window_s=0),
    ):
        with pytest.raises(SettingError):
            wrong()
