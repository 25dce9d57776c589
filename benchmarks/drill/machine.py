"""A simulated machine that runs the command: with its own folder, home and link to the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import orjson

from benchmarks.object_store import ObjectStore, StoreLink
from benchmarks.run_process import RunProcess


class PipelineRun(RunProcess):
    """The document of `--json` of start N goes to `logs/report-N.json`."""

    @property
    def _report(self) -> Path:
        return self._logs / f"report-{self.starts}.json"

    def command(self) -> Sequence[str]:
        return (*self._command, "--json", str(self._report))

    def report(self) -> Mapping[str, Any] | None:
        """The document of the latest start's `--json`; None if it wrote none."""
        path = self._report
        found = orjson.loads(path.read_bytes()) if path.is_file() and path.stat().st_size else None
        return found if isinstance(found, dict) else None

    def texts(self) -> Iterator[str]:
        """Output and reports of all starts."""
        for path in sorted(self._logs.iterdir()):
            yield path.read_text(errors="replace")


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
