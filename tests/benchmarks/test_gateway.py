"""The measurement of the gateway, in small, and its arithmetic."""

from __future__ import annotations

import pytest
from benchmarks.gateway import Answer, GatewayOptions, UsersOptions, measure_gateway, measure_users, report
from benchmarks.hostile import WAYS, Rounds, measure_hostile
from benchmarks.hostile import report as hostile_report

from forebay.errors import LaunchError
from forebay.testing.script import FAULTS


def test_both_ways_in_one_run() -> None:
    options = GatewayOptions(rate_per_s=20, rounds=1, seconds=1, first_token_s=0.01, token_s=0.0)
    found = measure_gateway(options)
    assert found["requests"] == 20
    for way in ("direct", "gateway"):
        assert 10.0 < found[f"{way}_ttft_ms_p50"] <= found[f"{way}_latency_ms_p50"]
    assert found["added_ttft_ms_p50"] == found["gateway_ttft_ms_p50"] - found["direct_ttft_ms_p50"]


def test_totals() -> None:
    direct = [Answer(200, float(ms), float(ms + 1)) for ms in range(1, 101)]
    gateway = [Answer(200, float(ms + 4), float(ms + 9)) for ms in range(1, 101)]
    found = report(GatewayOptions(), {"direct": direct, "gateway": gateway})
    assert (found["direct_ttft_ms_p50"], found["gateway_ttft_ms_p99"]) == (50.0, 103.0)
    assert (found["added_ttft_ms_p50"], found["added_latency_ms_p99"]) == (4.0, 8.0)
    assert found["passed"]
    slower = [Answer(200, answer.first_ms + 2, answer.whole_ms) for answer in gateway]
    assert not report(GatewayOptions(), {"direct": direct, "gateway": slower})["passed"]


def test_wrong_answers_give_no_figures() -> None:
    with pytest.raises(LaunchError, match="1 of 2 answers had a status like 503"):
        report(GatewayOptions(), {"direct": [Answer(200, 1.0, 1.0), Answer(503, 1.0, 1.0)], "gateway": []})


def test_simultaneous_users_of_a_fresh_gateway() -> None:
    options = UsersOptions(users=6, rounds=1, first_token_s=0.01, decode_s=0.05, chunks=2, kv_tokens=9)
    found = measure_users(options)
    assert (found["direct_answers"], found["gateway_answers"], found["gateway_refused"]) == (6, 6, 0)
    assert found["ratio"] == found["gateway_first_ms_p50"] / found["direct_first_ms_p50"]


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


def test_lost_answer_of_others_fails_the_run() -> None:
    seen = rounds(1.0)
    seen["cut"]["attacked"][2][7] = Answer(503, 1.0, 1.0)
    found = hostile_report(GatewayOptions(), seen)
    assert (found["ways"]["cut"]["lost"], found["passed"]) == (1, False)


def test_ratio_above_the_limit_fails_the_run() -> None:
    found = hostile_report(GatewayOptions(), rounds(1.05))
    assert found["ways"]["cut"]["p99_ratio"] == pytest.approx(1.05)
    assert found["passed"]
    assert not hostile_report(GatewayOptions(), rounds(1.2))["passed"]


def test_one_disturbed_round_does_not_decide() -> None:
    seen = rounds(1.0)
    seen["cut"]["attacked"][1] = [Answer(200, 1.0, 5000.0)] * 100
    assert hostile_report(GatewayOptions(), seen)["ways"]["cut"]["p99_ratio"] == 1.0


def test_every_fault_of_a_prompt_is_a_way_to_be_hostile() -> None:
    sent = b"".join(request for way in WAYS.values() for request in way.requests).decode("latin-1")
    assert [fault for fault in FAULTS if f"((fault:{fault}))" not in sent] == []
