"""Runs an outside command to its end, with its output in a log."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from forebay.errors import SetupError

TAIL_LINES = 15
TAIL_BYTES = 16_384


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, at most 16 KiB of it; empty where there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(line.rsplit("\r", 1)[-1] for line in text.rstrip().split("\n")[-lines:])


def run_logged(
    command: Sequence[str | Path],
    log: Path,
    *,
    detail: Callable[[str], None] = lambda line: None,
    environment: Mapping[str, str],
    keep_fds: Sequence[int] = (),
) -> None:
    """Run `command`, append its output to `log` and hand each line to `detail`; blocks until it has ended.

    `environment` is all that it gets: `Settings.child_environment`, as pip's own configuration lives there.
    Raises `SetupError` with the log's tail where it ends with another status than 0 or cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = [str(part) for part in command]
    with log.open("ab") as file:
        file.write(f"$ {' '.join(arguments)}\n".encode())
        file.flush()
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=tuple(keep_fds),
            )
        except OSError as error:
            raise SetupError(f"{arguments[0]} cannot be run: {error.strerror}") from None
        try:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                file.flush()
                detail(line.decode("utf-8", "replace").strip())
            status = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            assert process.stdout is not None
            process.stdout.close()
    if status != 0:
        raise SetupError(
            f"{Path(arguments[0]).name} {' '.join(arguments[1:5])} … ended with status {status}; "
            f"the end of {log}:\n{tail(log)}"
        )
