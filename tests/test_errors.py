from __future__ import annotations

import pickle

import pytest

from forebay import errors
from forebay.errors import EngineError, ForebayError, RateLimited, RecordError

ALL = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, Exception)]
WITH_CAUSE = [cls for cls in ALL if issubclass(cls, EngineError | RecordError)]


def test_errors_have_one_root() -> None:
    assert all(issubclass(cls, ForebayError) for cls in ALL)


def test_causes_are_unique() -> None:
    causes = [cls.cause for cls in WITH_CAUSE]
    assert len(set(causes)) == len(causes)
    assert all(cause.replace("_", "").isalpha() and cause.islower() for cause in causes)


def test_only_transient_errors_are_retried() -> None:
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
def test_errors_can_be_pickled(cls: type[ForebayError]) -> None:
    again = pickle.loads(pickle.dumps(cls("what happened")))
    assert (type(again), str(again)) == (cls, "what happened")


def test_retry_after_is_kept_with_the_error() -> None:
    error = pickle.loads(pickle.dumps(RateLimited("slow down", retry_after_s=3.0)))
    assert error.retry_after_s == 3.0
