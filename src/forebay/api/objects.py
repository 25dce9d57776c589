"""Streams of objects over streams of bytes.

Between Forebay's operators records travel encoded (`forebay.codec`). What a user gets is a stream of objects:
a map that decodes, put into the job when something other than Forebay itself first reads the stream. PyFlink
or Flink chains it to what comes before, so that no object is pickled between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyflink.common import Types
from pyflink.datastream import DataStream

from forebay.codec import decode
from forebay.errors import SettingError

T = TypeVar("T")


class ObjectStream(DataStream, Generic[T]):
    """A PyFlink `DataStream` of objects of the class `holds`.

    `encoded` is the stream of bytes that it is made of, and `read` makes an object of them; `fields` are
    those that every event of a stream of events has, where they are known.
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

    if TYPE_CHECKING:
        # PyFlink has no types of its own: these tell a checker what a user's function is given.
        def map(self, func: Callable[[T], Any], output_type: Any = None) -> DataStream: ...

        def flat_map(self, func: Callable[[T], Any], output_type: Any = None) -> DataStream: ...

        def filter(self, func: Callable[[T], bool]) -> DataStream: ...

        def key_by(self, key_selector: Callable[[T], Any], key_type: Any = None) -> Any: ...


def check_stream(stream: object, where: str) -> None:
    """Raise `SettingError`, naming `where`, unless `stream` is a stream."""
    if not isinstance(stream, DataStream):
        raise SettingError(f"{where}: expected a DataStream, found {_described(stream)}")


def _described(value: object) -> str:
    kind = type(value).__name__
    if hasattr(value, "results") and hasattr(value, "dead_letters"):
        return f"{kind}; take its .results or its .dead_letters"
    return f"a value of type {kind}"
