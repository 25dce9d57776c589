"""docs/reference matches the code, and explains every argument."""

from __future__ import annotations

import inspect
import re

import pytest
from tools.api_reference import FOLDER, NOTE, pages

import forebay as fb
from forebay import testing

PUBLIC = {name: getattr(module, name) for module in (fb, testing) for name in module.__all__}
AS_READ_JSONL = {"read_text", "read_csv"}
"""Functions with the arguments of `read_jsonl`, except for the few that they explain themselves."""


def test_the_reference_is_up_to_date() -> None:
    made = pages()
    texts = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    # Others there are written by hand.
    assert {name for name, text in texts.items() if text.startswith(NOTE)} == set(made)
    for name, text in made.items():
        assert texts[name] == text, "run: make reference"


def explained(name: str) -> set[str]:
    found: set[str] = set()
    for block in re.findall(
        r"^(?:Args|Attributes):\n((?: {4}.*\n?)+)", inspect.getdoc(PUBLIC[name]) or "", re.M
    ):
        for names in re.findall(r"^ {4}(\w[\w, ]*): ", block, re.M):
            found |= set(names.split(", "))
    return found


class Ignore(fb.Program[int]):
    def initial(self, key: str) -> int:
        return 0

    def on_event(self, state: int, event: fb.Event, now: fb.Moment) -> fb.Step[int]:
        return fb.Step(state)


def attributes(value: object) -> set[str]:
    if value is testing.Machine:
        return set(vars(testing.Machine(Ignore())))
    return {name for name, each in vars(value).items() if isinstance(each, property)}


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - {"Program", "ForebayError"}))
def test_every_argument_is_explained_and_none_that_there_is_not(name: str) -> None:
    arguments = set(inspect.signature(PUBLIC[name]).parameters)
    assert explained(name) <= arguments | attributes(PUBLIC[name])
    if name not in AS_READ_JSONL | {"newest_checkpoint"}:
        assert arguments <= explained(name)
