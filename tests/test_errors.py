from __future__ import annotations

import pickle

import pytest

from forebay import errors
from forebay.errors import EngineError, ForebayError, RateLimited, RecordError

ALL = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, Exception)]
WITH_CAUSE = [cls for cls in ALL if issubclass(cls, EngineError | RecordError)]


def test_there_is_one_root() -> None:
    assert all(issubclass(cls, ForebayError) for cls in ALL)


def test_each_cause_is_a_word_of_its_own() -> None:
    causes = [cls.cause for cls in WITH_CAUSE]
    assert len(set(causes)) == len(causes)
    assert all(cause.replace("_", "").isalpha() and cause.islower() for cause in causes)


def test_what_can_help_is_retried_and_what_cannot_is_not() -> None:
    assert {cls.cause for cls in ALL if issubclass(cls, EngineError) and cls.retryable} == {
        "rate_limited",
        "overloaded",
        "server_fault",
        "unreachable",
        "timeout",
        "protocol_violation",
        "invalid_answer",
        "empty_answer",
        "answer_cut",
        "out_of_tokens",
    }


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_an_error_survives_the_way_between_processes(cls: type[ForebayError]) -> None:
    again = pickle.loads(pickle.dumps(cls("what happened")))
    assert (type(again), str(again)) == (cls, "what happened")


def test_a_replica_s_wish_stays_with_the_error() -> None:
    error = pickle.loads(pickle.dumps(RateLimited("slow down", retry_after_s=3.0)))
    assert error.retry_after_s == 3.0
