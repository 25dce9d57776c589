"""Pydantic models as schemas of answers."""

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
    model: type[BaseModel]

    def __post_init__(self) -> None:
        if not (isinstance(self.model, type) and issubclass(self.model, BaseModel)):
            name = getattr(self.model, "__name__", repr(self.model))
            raise SettingError(
                f"schema: {name} is not a pydantic model; give a subclass of BaseModel, or a JSON schema"
            )

    def schema(self) -> Mapping[str, JSON]:
        try:
            return self.model.model_json_schema()
        except (PydanticUserError, TypeError, ValueError, LookupError) as error:
            detail = " ".join(str(error).split("For further information")[0].split())
            raise SettingError(
                f"schema: no JSON schema can express {self.model.__name__}: {detail[:300]}"
            ) from None

    def __call__(self, answer: JSON) -> Any:
        try:
            return self.model.model_validate_json(dump_json(answer))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            at = ".".join(map(str, first["loc"]))
            raise InvalidAnswer(
                f"{self.model.__name__} rejects the answer{f' at {at}' if at else ''}: {first['msg'][:200]}"
            ) from None
        except Exception as error:
            raise InvalidAnswer(
                f"{self.model.__name__} rejects the answer: {type(error).__name__}: {str(error)[:200]}"
            ) from None


@dataclass(frozen=True)
class ReadResult:
    answers: AnswerModel

    def __call__(self, data: bytes) -> Result:
        plain: Result = decode(data)
        values = {each.name: getattr(plain, each.name) for each in fields(Result)}
        result = ModelResult(**{**values, "answer": self.answers(plain.answer)})
        object.__setattr__(result, "source", (self, data))
        return result


class ModelResult(Result):
    """A result whose answer is an instance of a model.

    PyFlink pickles objects between functions that it does not chain. This one pickles its source instead,
    because Flink could not import a model that is defined in the user's script.
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
