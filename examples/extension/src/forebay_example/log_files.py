"""Log files as a source: lines such as `2026-03-02T08:30:00 ERROR disk sda1 is full`."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

import forebay as fb
from forebay import extend
from forebay.errors import SettingError

LINE = re.compile(r"(?P<time>\S+) (?P<level>[A-Z]+) (?P<text>.+)")


class LogFiles(extend.SourceConnector):
    """Lines of log files, each exactly once: the place in the files is state."""

    path: extend.LocalPath = Field(description="A file, or a directory whose files are read by name.")
    limit: int | None = Field(None, ge=1, description="Stop after this many lines; null: no limit.")

    def ready(self) -> None:
        if not Path(self.path).exists():
            raise SettingError(f"path: there is no {self.path}")

    def read(self, env: Any) -> Any:
        return fb.read_text(env, self.path, limit=self.limit, name="log files")

    def event(self, element: Any) -> fb.Event | fb.DeadLetter:
        line: fb.Event = element
        found = LINE.fullmatch(line.fields["text"])
        if found is None:
            return fb.DeadLetter(line.raw, "malformed_record", "no time and level", position=line.position)
        return replace(line, fields=found.groupdict())


CONNECTOR = extend.Connector(source=LogFiles)
