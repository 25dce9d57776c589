"""Child processes of this Python import nothing from the working directory: whoever may write there would run
code in them."""

from __future__ import annotations

import sys

WITHOUT_WORKING_DIRECTORY = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""`-P` is for Python 3.11 and later, and `-I` would forget PYTHONPATH."""


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module` as `python -m` does."""
    return [sys.executable, "-c", WITHOUT_WORKING_DIRECTORY, module, *arguments]
