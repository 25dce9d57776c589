"""Streams of objects over streams of bytes.

Between Forebay's operators records travel encoded (`forebay.codec`). What a user gets is a stream of objects:
a map that decodes, made when something other than Forebay's own sinks and operators first reads the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyflink.common import Types
from pyflink.datastream import DataStream

from forebay.codec import decode

T = TypeVar("T")


class ObjectStream(DataStream, Generic[T]):
    """A PyFlink `DataStream` of objects of one class. `encoded` is the stream of bytes that it is made of."""

    def __init__(
        self, encoded: DataStream, read: Callable[[bytes], T] = decode, name: str = "objects"
    ) -> None:
        self.encoded = encoded
        self._read = read
        self._name = name
        self._objects: Any = None

    @property
    def _j_data_stream(self) -> Any:
        if self._objects is None:
            read = self._read
            objects = self.encoded.map(lambda data: read(bytes(data)), Types.PICKLED_BYTE_ARRAY())
            objects.name(self._name).set_parallelism(self.encoded._j_data_stream.getParallelism())
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
