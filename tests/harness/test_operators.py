"""What test runs request from Flink."""

from __future__ import annotations

import pytest
from tests.harness.operators import until_answered

from forebay.errors import LaunchError
from forebay.flink.rest import RestSilent


def test_a_flink_that_is_silent_for_a_while_is_asked_again() -> None:
    silent = [RestSilent("no answer in time")] * 2

    def ask() -> int:
        if silent:
            raise silent.pop()
        return 7

    assert until_answered(ask) == 7


def test_a_flink_that_refuses_is_not_asked_again() -> None:
    def ask() -> int:
        raise LaunchError("answered 500")

    with pytest.raises(LaunchError, match="500"):
        until_answered(ask)
