"""Stateful, continuous, exactly-once LLM inference over event streams.

    import forebay as fb

Everything that a program needs is here; `forebay.errors` and `forebay.testing` are the only modules beside
it that are public. A name is imported when it is first used: `import forebay` alone loads neither PyFlink nor
anything else that takes long, and starts nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from forebay.api.environment import environment as environment
    from forebay.api.files import write_jsonl as write_jsonl
    from forebay.api.inference import Inference as Inference
    from forebay.api.streams import infer as infer
    from forebay.engine.retry import RetryPolicy as RetryPolicy
    from forebay.errors import ForebayError as ForebayError
    from forebay.records import DeadLetter as DeadLetter
    from forebay.records import Event as Event
    from forebay.records import Message as Message
    from forebay.records import Result as Result
    from forebay.records import Sampling as Sampling

_HOMES = {
    "DeadLetter": "records",
    "Event": "records",
    "ForebayError": "errors",
    "Inference": "api.inference",
    "Message": "records",
    "Result": "records",
    "RetryPolicy": "engine.retry",
    "Sampling": "records",
    "environment": "api.environment",
    "infer": "api.streams",
    "write_jsonl": "api.files",
}
"""Where each name is defined."""

__all__ = [
    "DeadLetter",
    "Event",
    "ForebayError",
    "Inference",
    "Message",
    "Result",
    "RetryPolicy",
    "Sampling",
    "environment",
    "infer",
    "write_jsonl",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'forebay' has no attribute {name!r}")
    value = getattr(import_module(f"forebay.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
