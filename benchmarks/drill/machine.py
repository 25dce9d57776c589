"""A simulated machine that runs the command: with its own folder, home and link to the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import orjson

from benchmarks.drill.process import PipelineRun
from benchmarks.object_store import ObjectStore, StoreLink


class Machine(AbstractContextManager["Machine"]):
    """Runs `command` with its own pipeline file; `connectors`: a folder of installed jars. A context manager
    that ends all its processes."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        engine_url: str,
        connectors: Path | None,
        store: ObjectStore | None,
    ) -> None:
        self._stack = ExitStack()
        self._pipeline = folder / "pipeline.yaml"
        home = folder / "home"
        home.mkdir(parents=True, mode=0o700)
        if connectors is not None:
            (home / "connectors").symlink_to(connectors)
        variables = {**environment, "FOREBAY_HOME": str(home)}
        self.link: StoreLink | None = None
        if store is not None:
            self.link = StoreLink(store.port)
            self._stack.enter_context(self.link)
            variables |= {**store.variables, "AWS_ENDPOINT_URL": self.link.url}
        words = [*command, "run", str(self._pipeline), "--engine", engine_url]
        self.run = self._stack.enter_context(PipelineRun(words, folder / "logs", variables, folder))

    def write(self, document: Mapping[str, Any]) -> None:
        """Write the pipeline file of the next start."""
        # JSON is YAML.
        self._pipeline.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
