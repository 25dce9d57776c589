"""Stateful, continuous, exactly-once LLM inference over event streams.

    import forebay as fb

All public names are here, in `forebay.errors` and in `forebay.testing`. They are imported on first use:
`import forebay` is fast, does not load PyFlink and starts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.lazy_names import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from forebay.api.apps import TopicOutputs as TopicOutputs
    from forebay.api.apps import sessions as sessions
    from forebay.api.apps import summaries as summaries
    from forebay.api.apps import topics as topics
    from forebay.api.apps import trends as trends
    from forebay.api.environment import environment as environment
    from forebay.api.environment import newest_checkpoint as newest_checkpoint
    from forebay.api.files import read_csv as read_csv
    from forebay.api.files import read_jsonl as read_jsonl
    from forebay.api.files import read_text as read_text
    from forebay.api.files import write_jsonl as write_jsonl
    from forebay.api.inference import Fleet as Fleet
    from forebay.api.inference import Inference as Inference
    from forebay.api.kafka import read_kafka as read_kafka
    from forebay.api.kafka import write_kafka as write_kafka
    from forebay.api.objects import ObjectStream as ObjectStream
    from forebay.api.streams import Outputs as Outputs
    from forebay.api.streams import infer as infer
    from forebay.api.streams import infer_stateful as infer_stateful
    from forebay.engine.retry import RetryPolicy as RetryPolicy
    from forebay.errors import ForebayError as ForebayError
    from forebay.records import DeadLetter as DeadLetter
    from forebay.records import Event as Event
    from forebay.records import Message as Message
    from forebay.records import Result as Result
    from forebay.records import Sampling as Sampling
    from forebay.records import Usage as Usage
    from forebay.stateful.program import Answer as Answer
    from forebay.stateful.program import Ask as Ask
    from forebay.stateful.program import Failure as Failure
    from forebay.stateful.program import Moment as Moment
    from forebay.stateful.program import Output as Output
    from forebay.stateful.program import Program as Program
    from forebay.stateful.program import Step as Step
    from forebay.stateful.program import Timer as Timer

_HOMES = {
    "Answer": "stateful.program",
    "Ask": "stateful.program",
    "DeadLetter": "records",
    "Event": "records",
    "Failure": "stateful.program",
    "Fleet": "api.inference",
    "ForebayError": "errors",
    "Inference": "api.inference",
    "Message": "records",
    "Moment": "stateful.program",
    "ObjectStream": "api.objects",
    "Output": "stateful.program",
    "Outputs": "api.streams",
    "Program": "stateful.program",
    "Result": "records",
    "RetryPolicy": "engine.retry",
    "Sampling": "records",
    "Step": "stateful.program",
    "Timer": "stateful.program",
    "TopicOutputs": "api.apps",
    "Usage": "records",
    "environment": "api.environment",
    "infer": "api.streams",
    "infer_stateful": "api.streams",
    "newest_checkpoint": "api.environment",
    "read_csv": "api.files",
    "read_jsonl": "api.files",
    "read_kafka": "api.kafka",
    "read_text": "api.files",
    "sessions": "api.apps",
    "summaries": "api.apps",
    "topics": "api.apps",
    "trends": "api.apps",
    "write_jsonl": "api.files",
    "write_kafka": "api.kafka",
}

__all__ = list(_HOMES)

if not TYPE_CHECKING:  # Otherwise a type checker would accept any name.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
