"""Runs the examples in the docstrings of public names, in a process of its own: URL BROKER NAME...

A name is one of `forebay`, or with `testing.` before it one of `forebay.testing`.
"""

from __future__ import annotations

import doctest
import sys
from pathlib import Path

import pydantic

import forebay as fb
from forebay import testing

ENGINE = "http://127.0.0.1:8100"
"""The examples' engine URL, replaced by a scripted replica."""
BROKER = "broker:9092"
"""The examples' Kafka address."""


def main(url: str, broker: str, *names: str) -> int:
    """Returns the number of failed examples."""
    failed = 0
    for name in names:
        module = testing if name.startswith("testing.") else fb
        text = getattr(module, name.removeprefix("testing.")).__doc__ or ""
        text = text.replace(ENGINE, url).replace(BROKER, broker)
        # Classes of an example are pickled by value into its job, like those of a user's program.
        names_there = {"fb": fb, "Path": Path, "pydantic": pydantic, "__name__": "__main__"}
        if module is testing:
            names_there |= {each: getattr(testing, each) for each in testing.__all__}
        examples = doctest.DocTestParser().get_doctest(text, names_there, name, None, None)
        assert examples.examples, f"{name} has no example"
        failed += doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples).failed
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) > 0)
