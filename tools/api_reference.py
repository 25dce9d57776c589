"""The pages in docs/reference, made from the docstrings and signatures of the public names.

`python -m tools.api_reference` writes them; a test checks that they are up to date.

A docstring has paragraphs, examples (`>>>`) and, under `Args:` or `Attributes:`, one entry per name. Examples
become code blocks and entries a table. A public name in backticks becomes a link to its section.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import forebay
from forebay import errors, records, testing
from forebay.api import apps, kafka_records, objects
from forebay.apps.topics import embedding
from forebay.engine.prompt import template
from forebay.errors import ForebayError
from forebay.flink import request_pool
from forebay.stateful import program

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- Made from the code by tools.api_reference: do not edit. -->"
LINE = 96
"""The most characters of a line of a signature."""

FOREBAY = {
    "Jobs": ["environment", "newest_checkpoint", "infer", "infer_stateful"],
    "The model": ["Inference", "Fleet", "Message", "Sampling", "RetryPolicy"],
    "Records": ["Event", "Result", "DeadLetter"],
    "Files and Kafka": ["read_jsonl", "read_text", "read_csv", "write_jsonl", "read_kafka", "write_kafka"],
    "Applications": ["sessions", "summaries", "topics", "trends"],
    "Stateful programs": ["Program", "Step", "Ask", "Answer", "Failure", "Output", "Timer", "Moment"],
    "What you are given": ["Outputs", "TopicOutputs", "ObjectStream", "Usage"],
    "Errors": ["ForebayError"],
}
TESTING = {
    "Engines": ["ScriptedEngineFactory", "ReplicaThread", "ReplicaProcess", "ReplicaScript"],
    "Delays and faults": ["Fixed", "Mixture", "Faults"],
    "Programs": ["Machine"],
    "What you are given": ["CallReport"],
    "Clusters and waiting": ["local_cluster", "wait_until"],
}
STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}

GIVEN = {"Program", "ForebayError", "Outputs", "TopicOutputs", "ObjectStream", "Usage", "CallReport"}
"""Classes that a program does not call, so that their signatures are of no use."""
METHODS = {
    "Program": ["initial", "on_event", "on_answer", "on_failure", "on_timer", "save", "load"],
    "Machine": ["event", "answer", "give_up", "pass_time", "end", "restart"],
    "ReplicaThread": ["report"],
    "ReplicaProcess": ["start", "stop", "kill", "report"],
}
TYPES = {
    "JSON": records,
    "KeyOf": kafka_records,
    "OpenEmbedder": embedding,
    "TextOf": objects,
    "ToEvent": objects,
}
"""Names in signatures that the page explains, and the modules that define them."""
SHOWN = {"Api": template, "Clock": program, "Ordering": request_pool, "TooLarge": kafka_records}
"""Names for which signatures show what they stand for."""


def pages() -> dict[str, str]:
    """Each page's name and its Markdown."""
    head = ["## Types\n", "What these names in signatures stand for. They cannot be imported.\n"]
    types = [f"- `{name}` is `{_definition(name, at)}`. {_meaning(name, at)}" for name, at in TYPES.items()]
    return {
        "forebay.md": _page(
            "forebay.md", forebay, [*_areas(FOREBAY, forebay), *head, *types, "", *_error_tree()]
        ),
        "testing.md": _page("testing.md", testing, [*_areas(TESTING, testing)]),
    }


def _page(file: str, module: ModuleType, parts: list[str]) -> str:
    name = module.__name__
    opening = f"After this page you can use every public name of `{name}`, and know what it guarantees.\n"
    head = [NOTE, f"\n# `{name}`\n", opening, *_prose(inspect.getdoc(module) or "", name)]
    return "\n".join([*head, *parts]).rstrip().replace(f"]({file}#", "](#") + "\n"


def _areas(areas: dict[str, list[str]], module: Any) -> Iterator[str]:
    named = [name for names in areas.values() for name in names]
    if sorted(named) != sorted(module.__all__):
        raise ValueError(f"{module.__name__}: on the page {sorted(named)}, public {sorted(module.__all__)}")
    for area, names in areas.items():
        yield f"## {area}\n"
        for name in names:
            yield from _section(name, getattr(module, name))


def _section(name: str, value: Any) -> Iterator[str]:
    yield f"### `{name}`\n"
    if name not in GIVEN:
        yield f"```py\n{_signature(name, value)}\n```\n"
    yield from _prose(inspect.getdoc(value) or "", name)
    for method in METHODS.get(name, ()):
        yield f"#### `{name}.{method}`\n"
        yield f"```py\n{_signature(method, getattr(value, method))}\n```\n"
        yield from _prose(inspect.getdoc(getattr(value, method)) or "", name)


def _error_tree() -> Iterator[str]:
    """All errors as a list. Those without a section on the page have an anchor for the links to them."""
    public = [each for each in vars(errors).values() if inspect.isclass(each)]
    yield f"## `{errors.__name__}`\n"
    yield from _prose(inspect.getdoc(errors) or "", errors.__name__)
    rows: list[str] = []
    for each in _tree([each for each in public if issubclass(each, ForebayError)]):
        name = each.__name__
        text = re.split(r"\n\n(?=>>> )", inspect.getdoc(each) or "")[0]
        cause, retryable = getattr(each, "cause", None), getattr(each, "retryable", False)
        ends = f" Cause: `{cause}`, {'retried' if retryable else 'not retried'}." if cause is not None else ""
        indent = "    " * (len(each.__mro__) - 4)
        anchor = "" if name in forebay.__all__ else f'<a id="{name.lower()}"></a>'
        rows.append(f"{indent}- {anchor}**`{name}`**: {_sentence(text, name)}{ends}")
    yield "\n".join(rows) + "\n"


def _sentence(doc: str, at: str) -> str:
    """A docstring in one line, with its attributes in backticks."""
    return _linked(" ".join(re.sub(r"^ {4}(\w+):", r"`\1`:", doc, flags=re.M).split()), at)


def _tree(classes: list[type]) -> Iterator[type]:
    def below(base: type) -> Iterator[type]:
        yield base
        for each in classes:
            if each.__base__ is base:
                yield from below(each)

    return below(ForebayError)


def _prose(doc: str, at: str) -> Iterator[str]:
    """The parts of a docstring as Markdown."""
    for part in re.split(r"\n\n+", doc):
        if part.startswith(">>> "):
            yield f"```pycon\n{part}\n```\n"
        elif re.match(r"(Args|Attributes):\n", part):
            yield _table(part, at)
        elif re.match(r" {4}\S", part):
            yield f"```py\n{dedent(part)}\n```\n"
        else:
            yield _linked(part, at) + "\n"


def _table(part: str, at: str) -> str:
    head, _, entries = part.partition("\n")
    rows = ["| argument | meaning |" if head == "Args:" else "| attribute | meaning |", "|---|---|"]
    for entry in re.split(r"\n(?=\S)", dedent(entries)):
        names, _, meaning = " ".join(entry.split()).partition(": ")
        shown = ", ".join(f"`{name}`" for name in names.split(", "))
        rows.append(f"| {shown} | {_linked(meaning, at)} |")
    return "\n".join(rows) + "\n"


def _linked(text: str, at: str) -> str:
    text = re.sub(
        r"application `(\w+)`", r"[application `\1`](../pipeline.md#application-with-type-\1)", text
    )
    return re.sub(r"`(\w+)`", lambda found: found[0] if found[1] == at else _link(found[1]), text)


def _link(name: str) -> str:
    """The name, as a link if the pages have a section of it."""
    if name in forebay.__all__ or inspect.isclass(vars(errors).get(name)):
        page = "forebay.md"
    elif name in testing.__all__:
        page = "testing.md"
    else:
        return f"`{name}`"
    return f"[`{name}`]({page}#{name.lower()})"


def _signature(name: str, value: Any) -> str:
    """The call of a function or a class: on one line if it fits, else with its arguments below."""
    parts: list[str] = []
    keywords_only = False
    for each in inspect.signature(value).parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.VAR_KEYWORD and each.annotation.startswith("Unpack["):
            keys = vars(apps)[each.annotation[len("Unpack[") : -1]].__annotations__
            parts += [f"{key}: {reference.__forward_arg__} = ..." for key, reference in keys.items()]
            continue
        if each.kind is each.KEYWORD_ONLY and not keywords_only:
            parts.append("*")
        keywords_only |= each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        stars = STARS.get(each.kind, "")
        default = "" if each.default is each.empty else f" = {_default(value, each)}"
        kind = re.sub(r"\w+", lambda word: _shown(word[0]), each.annotation)
        parts.append(f"{stars}{each.name}: {kind}{default}")
    returned = inspect.signature(value).return_annotation
    arrow = "" if inspect.isclass(value) or returned == "None" else f" -> {returned}"
    text = f"{name}({', '.join(parts)}){arrow}"
    if len(text) > LINE:
        text = "\n".join([f"{name}(", *_packed(parts), f"){arrow}"])
    return text.replace("'", '"')


def _packed(parts: list[str]) -> list[str]:
    """The arguments of a long signature on as few lines as they need."""
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) + 2 > LINE:
            lines.append("")
        lines[-1] += f" {part}," if lines[-1] else f"    {part},"
    return lines


def _shown(name: str) -> str:
    return _definition(name, SHOWN[name]) if name in SHOWN else name


def _default(value: Any, parameter: inspect.Parameter) -> str:
    for field in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
        factory = field.default_factory
        if field.name == parameter.name and factory is not dataclasses.MISSING:
            return f"{factory.__name__}()" if inspect.isclass(factory) else repr(factory())
    default = parameter.default
    return f"{default:_}" if type(default) is int else repr(default)


def _definition(name: str, module: ModuleType) -> str:
    """The type that `name` stands for, as `module` writes it."""
    found = re.search(rf"^{name} = (.*)$", inspect.getsource(module), re.M)
    assert found, f"{module.__name__} does not define {name}"
    return found[1].replace('"Event |', "Event |").replace('str"]', "str]")


def _meaning(name: str, module: ModuleType) -> str:
    found = re.search(rf'^{name} = [^\n]*\n"""(.*?)"""', inspect.getsource(module), re.M | re.S)
    assert found, f"{module.__name__} does not explain {name}"
    return " ".join(found[1].split())


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
