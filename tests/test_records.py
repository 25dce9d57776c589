"""The values of a pipeline."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any

import pytest

from forebay import records
from forebay.records import Request, Sampling, Timing

VALUES = [value for value in vars(records).values() if isinstance(value, type) and is_dataclass(value)]


@pytest.mark.parametrize("cls", VALUES, ids=lambda cls: cls.__name__)
def test_values_are_frozen_and_have_slots(cls: Any) -> None:
    assert cls.__dataclass_params__.frozen
    assert "__slots__" in vars(cls)
    value = object.__new__(cls)
    with pytest.raises(FrozenInstanceError):
        setattr(value, fields(cls)[0].name, 1)


def test_latency_is_from_the_sending_to_the_end() -> None:
    assert Timing(sent_s=10.0, done_s=12.5, first_token_s=11.0).latency_s == 2.5


def test_requests_do_not_share_what_can_change() -> None:
    assert Request(id="a", model="m").sampling == Sampling()
    assert Sampling().extra is not Sampling().extra
