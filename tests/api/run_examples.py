"""Runs the examples in the docstrings of public names, in a process of its own: URL NAME..."""

from __future__ import annotations

import doctest
import sys
from pathlib import Path

import pydantic

import forebay as fb

ENGINE = "http://127.0.0.1:8100"
"""Where examples find their engine; a scripted replica takes its place."""


def main(url: str, *names: str) -> int:
    """How many examples failed."""
    failed = 0
    for name in names:
        text = (getattr(fb, name).__doc__ or "").replace(ENGINE, url)
        # What an example defines is pickled by value into its job, as what a user's program defines.
        names_there = {"fb": fb, "Path": Path, "pydantic": pydantic, "__name__": "__main__"}
        examples = doctest.DocTestParser().get_doctest(text, names_there, f"fb.{name}", None, None)
        assert examples.examples, f"fb.{name} has no example"
        failed += doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples).failed
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) > 0)
