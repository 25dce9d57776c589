"""Streams of objects over streams of bytes.

Between Forebay's operators records travel encoded (`forebay.codec`). What a user gets is a stream of objects:
each function of theirs is put behind one that decodes. Where PyFlink's own operators read the stream
(`key_by`, `process`, `union`), an operator that decodes is put into the job, in the task of what comes
before, so that no object is pickled between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from pyflink.common import Types
from pyflink.datastream import DataStream, FilterFunction, FlatMapFunction, MapFunction

from forebay.codec import decode
from forebay.errors import SettingError

T = TypeVar("T")


class ObjectStream(DataStream, Generic[T]):
    """A PyFlink `DataStream` of objects: use it as any other, with `map`, `filter`, `key_by`, `process`.

    Attributes:
        encoded: The stream of bytes that it is made of.
        holds: The class of the objects.
        read: Makes an object of its bytes.
        fields: The fields that every event of a stream of events has, where they are known.
    """

    def __init__(
        self,
        encoded: DataStream,
        holds: type[T],
        read: Callable[[bytes], T] = decode,
        *,
        fields: Iterable[str] | None = None,
    ) -> None:
        self.encoded = encoded
        self.holds = holds
        self.read = read
        self.fields = None if fields is None else frozenset(fields)
        self._objects: Any = None

    @property
    def _j_data_stream(self) -> Any:
        if self._objects is None:
            read = self.read
            objects = self.encoded.map(lambda data: read(bytes(data)), Types.PICKLED_BYTE_ARRAY())
            objects.name(f"{self.holds.__name__} objects").set_parallelism(
                self.encoded._j_data_stream.getParallelism()
            )
            self._objects = objects._j_data_stream
        return self._objects

    @_j_data_stream.setter
    def _j_data_stream(self, objects: Any) -> None:
        # PyFlink itself does so where it chains functions, before a job starts.
        self._objects = objects

    # A plain function is put behind `read` in one operator: no object is pickled, however many there are.

    def map(self, func: Callable[[T], Any], output_type: Any = None) -> DataStream:
        if isinstance(func, MapFunction):
            return super().map(func, output_type)
        return self.encoded.map(self._reading(func), output_type)

    def flat_map(self, func: Callable[[T], Any], output_type: Any = None) -> DataStream:
        if isinstance(func, FlatMapFunction):
            return super().flat_map(func, output_type)
        return self.encoded.flat_map(self._reading(func), output_type)

    def filter(self, func: Callable[[T], bool]) -> ObjectStream[T]:
        if isinstance(func, FilterFunction):
            return super().filter(func)
        kept = self.encoded.filter(self._reading(func))
        return ObjectStream(kept, self.holds, self.read, fields=self.fields)

    def print(self, sink_identifier: str | None = None) -> Any:
        return self.map(str, Types.STRING()).print(sink_identifier)

    def _reading(self, func: Callable[[T], Any]) -> Callable[[bytes], Any]:
        read = self.read
        return lambda data: func(read(bytes(data)))

    if TYPE_CHECKING:
        # PyFlink has no types of its own: these tell a checker what a user's function is given.
        def key_by(self, key_selector: Callable[[T], Any], key_type: Any = None) -> Any: ...

        @overload
        def execute_and_collect(
            self, job_execution_name: str | None = None, limit: None = None
        ) -> AbstractContextManager[Iterator[T]]: ...

        @overload
        def execute_and_collect(self, job_execution_name: str | None = None, *, limit: int) -> list[T]: ...

        def execute_and_collect(self, job_execution_name: str | None = None, limit: Any = None) -> Any: ...


def check_stream(stream: object, where: str) -> None:
    """Raise `SettingError`, naming `where`, unless `stream` is a stream."""
    if not isinstance(stream, DataStream):
        raise SettingError(f"{where}: expected a DataStream, found {_described(stream)}")


def _described(value: object) -> str:
    kind = type(value).__name__
    if hasattr(value, "results") and hasattr(value, "dead_letters"):
        return f"{kind}; take its .results or its .dead_letters"
    return f"a value of type {kind}"
