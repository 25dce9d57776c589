"""Pydantic models as the form of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import cloudpickle
from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError

from forebay.codec import decode
from forebay.errors import InvalidAnswer, SettingError
from forebay.json_numbers import dump_json
from forebay.records import JSON, Result


@dataclass(frozen=True)
class AnswerModel:
    """Makes instances of a pydantic model out of answers. Picklable."""

    model: type[BaseModel]

    def __post_init__(self) -> None:
        if not (isinstance(self.model, type) and issubclass(self.model, BaseModel)):
            name = getattr(self.model, "__name__", repr(self.model))
            raise SettingError(
                f"schema: {name} is no pydantic model; give a subclass of BaseModel, or a JSON schema"
            )

    def schema(self) -> Mapping[str, JSON]:
        """The JSON schema. Raises `SettingError` where none can say what the model takes."""
        try:
            return self.model.model_json_schema()
        except (PydanticUserError, TypeError, ValueError, LookupError) as error:
            said = " ".join(str(error).split("For further information")[0].split())
            raise SettingError(
                f"schema: no JSON schema can express {self.model.__name__}: {said[:300]}"
            ) from None

    def __call__(self, answer: JSON) -> Any:
        """The instance. Raises `InvalidAnswer` where the model refuses the answer, or one of its validators
        raises."""
        try:
            return self.model.model_validate_json(dump_json(answer))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            at = ".".join(map(str, first["loc"]))
            raise InvalidAnswer(
                f"{self.model.__name__} refuses the answer{f' at {at}' if at else ''}: {first['msg'][:200]}"
            ) from None
        except Exception as error:
            raise InvalidAnswer(
                f"{self.model.__name__} refuses the answer: {type(error).__name__}: {str(error)[:200]}"
            ) from None


@dataclass(frozen=True)
class ReadResult:
    """The result in its bytes, its answer an instance of the model."""

    answers: AnswerModel

    def __call__(self, data: bytes) -> Result:
        plain: Result = decode(data)
        values = {each.name: getattr(plain, each.name) for each in fields(Result)}
        result = ModelResult(**{**values, "answer": self.answers(plain.answer)})
        object.__setattr__(result, "source", (self, data))
        return result


class ModelResult(Result):
    """A result whose answer is an instance of a model.

    Where PyFlink pickles it, between functions that it does not chain, what it was made of is pickled: a
    model that stands in the user's script could not be found by its name inside Flink.
    """

    __slots__ = ("source",)

    def __reduce__(self) -> Any:
        source: tuple[ReadResult, bytes] | None = getattr(self, "source", None)
        if source is None:  # A changed copy.
            return ModelResult, tuple(getattr(self, each.name) for each in fields(self))
        reader, data = source
        return _read_pickled, (_pickled(reader), data)


@lru_cache(maxsize=64)
def _pickled(reader: ReadResult) -> bytes:
    pickled: bytes = cloudpickle.dumps(reader)
    return pickled


@lru_cache(maxsize=64)
def _unpickled(pickled: bytes) -> ReadResult:
    reader: ReadResult = cloudpickle.loads(pickled)
    return reader


def _read_pickled(pickled: bytes, data: bytes) -> Result:
    return _unpickled(pickled)(data)
