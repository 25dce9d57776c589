"""Plain bytes in Flink, as elements of streams and as values of state.

A checkpoint holds both: elements where it catches them on their way. PyFlink pickles what it is told no type
for, and whoever can write a checkpoint could then run code in the job that restores it.
"""

from __future__ import annotations

from typing import Any

from pyflink.common import TypeInformation, Types

BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
"""Elements of streams: `bytes`. As the type of state this one would give tuples of numbers."""


class StateBytes(TypeInformation):
    """Values of state: `bytes`, or None. Descriptors take it inside the JVM, as in a function's `open`.

    Of a type that it does not know PyFlink hands values to Java as they are, and Java keeps arrays of bytes.
    """

    def get_java_type_info(self) -> Any:
        return BYTES.get_java_type_info()


STATE = StateBytes()


END_OF_TIME_MS = 2**63 - 2
"""An event-time timer at this time fires with the final watermark."""
