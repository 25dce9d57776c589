"""Sink to standard output."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from forebay.connectors.base import Connector, SinkSettings, Written

if TYPE_CHECKING:
    from pyflink.datastream import DataStream


class StdoutSink(SinkSettings):
    """JSON lines on standard output; lines since the last checkpoint are repeated after a recovery."""

    bound: ClassVar[frozenset[str] | None] = frozenset()
    takes_dead_letters: ClassVar[bool] = False
    subtasks: ClassVar[int | None] = 1

    type: Literal["stdout"]

    def summary(self) -> str:
        return "standard output"

    def attach(self, records: DataStream, written: Written) -> None:
        from forebay.connectors.formats import result_lines

        # One subtask: several would each print their number before every line.
        result_lines(records).print().name("standard output").set_parallelism(1)


STDOUT = Connector(sink=StdoutSink)
