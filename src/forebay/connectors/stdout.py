"""Standard output as a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from forebay.connectors.base import Connector, SinkSettings, Written

if TYPE_CHECKING:
    from pyflink.datastream import DataStream


class StdoutSink(SinkSettings):
    """JSON lines on standard output; after a recovery, lines since the last checkpoint come again."""

    bound: ClassVar[frozenset[str] | None] = frozenset()
    takes_dead_letters: ClassVar[bool] = False
    subtasks: ClassVar[int | None] = 1

    type: Literal["stdout"]

    def summary(self) -> str:
        return "standard output"

    def attach(self, records: DataStream, written: Written) -> None:
        from forebay.connectors.formats import result_lines

        # Nothing but the lines: of several subtasks, each would put its number before every line.
        result_lines(records).print().name("standard output").set_parallelism(1)


STDOUT = Connector(sink=StdoutSink)
