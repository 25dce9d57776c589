"""A small part of YAML 1.2: mappings with text keys, lists, texts, numbers, true, false, null.

No anchors, aliases, merge keys, tags or duplicate keys; bounded size and depth; dates stay texts. Every key
and item keeps its line number for error messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scalarstring import LiteralScalarString

from forebay.errors import SettingError

MAX_BYTES = 1_048_576
MAX_DEPTH = 64
NO_BREAK_SPACE = "\u00a0"

UNQUOTED = "'{' as a key; put a text that begins with a template in quotes: \"{{ NAME }}\""
NEVER_CLOSED = "found unexpected end of stream"
PLAIN_WORDS = (
    ("mapping values", "': ' within a text; put it in quotes, or correct the indentation or the line before"),
    (
        r".*<block end>.*('<scalar>'|'\{'|'\[')",
        "text after a closing quote or bracket; put all of it in quotes, ' or \"",
    ),
    (".*<document start>", "more text after the end of the first value; a file holds one mapping"),
    (
        ".*<block end>",
        "the line does not match the lines above; check its indentation and the quotes before it",
    ),
    (NEVER_CLOSED, "a quote that is never closed"),
    ("could not find expected ':'", "a line that is neither indented nor 'key: value'"),
    ("found character .* cannot start", "a text that begins with a special character; put it in quotes"),
    ("found unknown escape character", "a \\ in double quotes; write \\\\, or use single quotes"),
)
"""Regular expressions for the parser's messages, and what to print instead."""

Path = tuple[str | int, ...]

INTEGER = re.compile(r"[-+]?[0-9]{1,100}")
FLOAT = re.compile(r"[-+]?(\.[0-9]{1,100}|[0-9]{1,100}(\.[0-9]{0,100})?)([eE][-+]?[0-9]{1,3})?")
CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def parse_yaml(text: str, name: str, what: str = "pipeline") -> tuple[Any, dict[Path, int]]:
    """The value of a `what` file, and the line (from 1) of every key and item by path.

    Raises `SettingError` with `name`, line and problem. It never quotes a value.
    """
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        raise SettingError(f"{name} has {size} bytes; the limit for a {what} file is {MAX_BYTES}")
    reader = _Reader(text, name)
    try:
        value = reader.document()
    except MarkedYAMLError as error:
        problem = str(error.problem or error.context)
        mark = error.problem_mark or error.context_mark
        begin = error.context_mark or mark
        if problem.startswith(NEVER_CLOSED):
            mark = begin
        hint = _spaces_hint(text, begin.line, mark.line) if begin is not None and mark is not None else ""
        where = f":{mark.line + 1}" if mark is not None else ""
        plain = next((text for start, text in PLAIN_WORDS if re.match(start, problem)), problem)
        raise SettingError(f"{name}{where}: not valid YAML: {hint or plain}") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SettingError(
            f"{name}:{line}: found the invisible character U+{error.character:04X}, which YAML forbids; "
            "remove it, or write the line again"
        ) from None
    except YAMLError as error:
        raise SettingError(f"{name}: not valid YAML: {type(error).__name__}") from None
    except RecursionError:
        raise SettingError(f"{name}: nested deeper than {MAX_DEPTH} levels") from None
    except SettingError:
        raise
    except Exception as error:
        # The parser lets Python's own errors through, for example for escapes beyond Unicode.
        raise SettingError(f"{name}: not valid YAML: {type(error).__name__}") from None
    return value, reader.lines


def _spaces_hint(text: str, first: int, last: int) -> str:
    """Text that was copied from a web page may have no-break spaces, which look like spaces; tabs do, too."""
    for number, line in enumerate(text.split("\n")[first : last + 1], first + 1):
        if NO_BREAK_SPACE in line:
            return f"line {number} has a no-break space (U+00A0): replace it with a space"
        if line.lstrip(" ").startswith("\t"):
            return f"line {number} begins with a tab: indent it with spaces"
    return ""


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines: dict[Path, int] = {}
        self.events: Iterator[Any] = iter(YAML(typ="safe", pure=True).parse(text))

    def document(self) -> Any:
        value: Any = None
        documents = 0
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self.refuse(event, "a second document; only one is allowed")
                value = self.value(next(self.events), ())
        return value

    def value(self, event: Any, path: Path) -> Any:
        self.check(event, path)
        self.lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, MappingStartEvent):
            return self.mapping(path)
        if isinstance(event, SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(item := next(self.events), SequenceEndEvent):
                items.append(self.value(item, (*path, len(items))))
            return items
        return self.scalar(event)

    def mapping(self, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while not isinstance(key := next(self.events), MappingEndEvent):
            self.check(key, path)
            if not isinstance(key, ScalarEvent):
                self.refuse(
                    key, UNQUOTED if isinstance(key, MappingStartEvent) else "a key that is not a text"
                )
            plain = key.style is None
            if plain and key.value == "<<":
                self.refuse(key, "a merge key '<<'; write out the keys")
            if plain and not isinstance(self.scalar(key), str):
                self.refuse(key, "a key that is not a text; put it in quotes")
            if key.value in result:
                self.refuse(key, f"key {key.value[:60]!r} a second time in the same mapping")
            inner = (*path, key.value)
            self.lines[inner] = key.start_mark.line + 1
            result[key.value] = self.value(next(self.events), inner)
        return result

    def scalar(self, event: Any) -> Any:
        text = event.value
        if event.style is not None:
            return text
        if text in CONSTANTS:
            return CONSTANTS[text]
        if INTEGER.fullmatch(text):
            return int(text)
        if FLOAT.fullmatch(text):
            return float(text)
        return text

    def check(self, event: Any, path: Path) -> None:
        if isinstance(event, AliasEvent):
            self.refuse(event, "an alias (*); write out the value, or quote a text that begins with '*'")
        if getattr(event, "anchor", None) is not None:
            self.refuse(event, "an anchor (&); quote a text that begins with '&'")
        if getattr(event, "ctag", None) is not None:
            self.refuse(event, "a tag (!); quote a text that begins with '!'")
        if len(path) >= MAX_DEPTH:
            self.refuse(event, f"more than {MAX_DEPTH} levels of nesting")

    def refuse(self, event: Any, found: str) -> None:
        raise SettingError(f"{self.name}:{event.start_mark.line + 1}: found {found}")


def to_yaml(document: dict[str, Any]) -> str:
    """Write `document` as YAML that `parse_yaml` reads as the same values."""
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 110
    yaml.allow_unicode = True
    yaml.representer.add_representer(type(None), _null)
    out = StringIO()
    yaml.dump(_blocks(document), out)
    return out.getvalue()


def _null(representer: Any, _: None) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def _blocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _blocks(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_blocks(inner) for inner in value]
    if isinstance(value, str) and "\n" in value and all(_plain(line) for line in value.split("\n")):
        return LiteralScalarString(value)
    return value


def _plain(line: str) -> bool:
    return line.isprintable() and line == line.strip()
