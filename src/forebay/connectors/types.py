"""Flink types of streams and state."""

from __future__ import annotations

from pyflink.common import Types

BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
"""Streams of encoded records."""

PICKLED = Types.PICKLED_BYTE_ARRAY()
"""State of plain tuples. Inside the JVM, state of type `BYTES` gives tuples of numbers and fails on None."""

END_OF_INPUT_MS = 2**63 - 2
"""An event-time timer at this time fires with the final watermark."""
