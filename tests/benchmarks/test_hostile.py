"""The measurement of others' latency with a hostile client, in small, and its arithmetic."""

from __future__ import annotations

import pytest
from benchmarks.gateway import Answer, GatewayOptions
from benchmarks.hostile import WAYS, Rounds, measure_hostile, report

from forebay.testing.script import FAULTS

ALONE = [[Answer(200, 1.0, float(ms)) for ms in range(1, 101)] for _ in range(3)]


def rounds(times: float, *, status: int = 200) -> dict[str, Rounds]:
    attacked = [[Answer(status, 1.0, answer.whole_ms * times) for answer in answers] for answers in ALONE]
    return {"cut": {"alone": ALONE, "attacked": attacked}}


@pytest.mark.parametrize("way", ["refused", "malformed"])
def test_both_turns_in_one_run(way: str) -> None:
    options = GatewayOptions(rate_per_s=20, rounds=1, seconds=1, first_token_s=0.01, token_s=0.0)
    found = measure_hostile(options, ways=[way])["ways"][way]
    assert (found["requests"], found["lost"]) == (20, 0)
    assert found["alone_ms_p50"] > 10.0
    assert found["p99_ratio"] == found["attacked_ms_p99"] / found["alone_ms_p99"]


def test_the_ratio_decides() -> None:
    found = report(GatewayOptions(), rounds(1.05))
    assert found["ways"]["cut"]["p99_ratio"] == pytest.approx(1.05)
    assert found["passed"]
    assert not report(GatewayOptions(), rounds(1.2))["passed"]


def test_one_disturbed_round_does_not_decide() -> None:
    seen = rounds(1.0)
    seen["cut"]["attacked"][1] = [Answer(200, 1.0, 5000.0)] * 100
    assert report(GatewayOptions(), seen)["ways"]["cut"]["p99_ratio"] == 1.0


def test_an_answer_that_others_lose_decides() -> None:
    seen = rounds(1.0)
    seen["cut"]["attacked"][2][7] = Answer(503, 1.0, 1.0)
    found = report(GatewayOptions(), seen)
    assert (found["ways"]["cut"]["lost"], found["passed"]) == (1, False)


def test_every_fault_of_a_prompt_is_a_way_to_be_hostile() -> None:
    sent = b"".join(request for way in WAYS.values() for request in way.requests).decode("latin-1")
    assert [fault for fault in FAULTS if f"((fault:{fault}))" not in sent] == []
