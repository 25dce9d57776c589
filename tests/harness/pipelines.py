"""Pipelines that run in the tests' process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.harness.homes import new_home

from forebay.connectors.files.sink import read_jsonl_sink
from forebay.pipeline.load import parse_spec
from forebay.pipeline.plan import Plan
from forebay.pipeline.run import run_pipeline
from forebay.pipeline.state_store import read_state, write_state
from forebay.settings import Settings


class Pipelines:
    """Runs pipelines in this process, on the session's JVM, with their files in one folder."""

    def __init__(self, folder: Path, connector: Path | None = None) -> None:
        self.folder = folder
        self._connector = connector

    def in_folder(self, name: str) -> Pipelines:
        folder = self.folder / name
        folder.mkdir()
        return Pipelines(folder, self._connector)

    def spec(self, **document: Any) -> Any:
        usual = {
            "name": "p",
            "source": {"type": "jsonl", "path": "in.jsonl"},
            "prompt": "{{ event.text }}",
            "sink": {"type": "jsonl", "path": "out"},
            "checkpoint": {"interval_s": 0.5},
        }
        return parse_spec({**usual, **document}, base=self.folder)

    def write(self, *lines: bytes | dict[str, Any], name: str = "in.jsonl") -> None:
        """Write an input file: bytes unchanged, everything else as JSON."""
        text = [line if isinstance(line, bytes) else orjson.dumps(line) for line in lines]
        (self.folder / name).write_bytes(b"".join(line + b"\n" for line in text))

    def run(
        self,
        spec: Any,
        url: str,
        *,
        watch: Any = lambda _: None,
        enough: Any = lambda _: False,
        **options: Any,
    ) -> Any:
        home = self.folder / "home"
        if not home.exists():
            new_home(home, self._connector.parent if self._connector else None)
        settings = Settings(home=home, python=Path())
        plan = Plan(spec, settings, **{"in_process": True, **options})
        try:
            return run_pipeline(plan, nullcontext([url]), watch, enough=enough)
        finally:
            self._keep_jvm(Path(spec.checkpoint.dir))

    def interrupt(self, spec: Any, url: str, enough: Callable[[], bool], **options: Any) -> Any:
        """Run `spec` until there is `enough`, and interrupt it like Ctrl-C; returns the last snapshot."""
        seen = []

        def watch(now: Any) -> None:
            seen.append(now)
            if now.state == "RUNNING" and enough():
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.run(spec, url, watch=watch, **options)
        assert seen[-1].state == "INTERRUPTED"
        return seen[-1]

    def _keep_jvm(self, checkpoints: Path) -> None:
        state = read_state(checkpoints)
        if state is not None:
            write_state(checkpoints, state.model_copy(update={"jvm": None}))

    def lines(self, sink: str = "out") -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in read_jsonl_sink(self.folder / sink)]
