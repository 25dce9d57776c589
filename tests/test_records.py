"""The values of a pipeline."""

from __future__ import annotations

from forebay.records import Request, Sampling, Timing


def test_latency_is_from_the_sending_to_the_end() -> None:
    assert Timing(sent_s=10.0, done_s=12.5, first_token_s=11.0).latency_s == 2.5


def test_requests_do_not_share_what_can_change() -> None:
    assert Request(id="a", model="m").sampling == Sampling()
    assert Sampling().extra is not Sampling().extra
