"""A page of docs/results, and how the figures get into it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from forebay.errors import SettingError
from forebay.files import read_bytes
from forebay.pages.picture import Picture

FRONT = "README"
ORIGIN = "origin"
MAX_BYTES = 64 << 20
TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.S)
Table = tuple[Sequence[str], Sequence[Sequence[object]]]
"""A header and rows; None is a dash. Commands show the same tables as the pages."""
Records = Mapping[str, Any]
"""The recorded documents of a page by the names of their files."""


@dataclass(frozen=True, slots=True)
class Rendered:
    tables: Mapping[str, str]
    plots: Mapping[str, Picture] = field(default_factory=dict)
    finding: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A question of a page.

    `name`: of `docs/results/NAME.md`, which may answer several questions. `records`: the files that the
    answer is made from. `render`: a pure function of these; no clock, no machine."""

    name: str
    question: str
    records: Sequence[str]
    render: Callable[[Records], Rendered]


def evaluation(folder: Path, pages: Sequence[Page]) -> dict[Path, bytes]:
    """Each page and plot in `folder` as the records there give it, the front page with all findings
    among them; writes nothing."""
    found: dict[Path, bytes] = {}
    tables: dict[Path, dict[str, str]] = {}
    rows = []
    for page in pages:
        rendered = page.render({name: _read(folder / name) for name in page.records})
        _add(tables.setdefault(folder / f"{page.name}.md", {}), rendered.tables)
        found |= {folder / name: plot.svg().encode() for name, plot in rendered.plots.items()}
        rows.append((f"[{page.question}]({page.name}.md)", rendered.finding))
    found |= {path: _filled(path, filled) for path, filled in tables.items()}
    front = folder / f"{FRONT}.md"
    found[front] = _filled(front, {"findings": table(("question", "what was found"), rows)})
    return found


def changed(files: Mapping[Path, bytes]) -> list[Path]:
    return [path for path, data in files.items() if not path.is_file() or path.read_bytes() != data]


def write(files: Mapping[Path, bytes]) -> list[Path]:
    """Write those that have changed, and name them."""
    paths = changed(files)
    for path in paths:
        path.write_bytes(files[path])
    return paths


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join('–' if one is None else str(one) for one in line)} |\n" for line in lines)


def origin(records: Records) -> str:
    """Where each document comes from: its command, the machine, the versions of what was measured."""
    return "".join(
        f"- [{name}]({name}): {_origin(found['provenance'])}\n"
        for name, found in records.items()
        if isinstance(found.get("provenance"), dict)
    )


def _origin(provenance: Mapping[str, Any]) -> str:
    machine = provenance.get("machine") or {}
    parts = [
        f"`{provenance['command']}`" if provenance.get("command") else "",
        _processor(machine),
        *(str(gpu) for gpu in machine.get("gpus") or ()),
        str(provenance.get("model") or ""),
        ", ".join(
            f"{name} {version}"
            for versions in (provenance.get("engine_versions") or {}, provenance.get("versions") or {})
            for name, version in versions.items()
        ),
    ]
    return "; ".join(filter(None, parts))


def _processor(machine: Mapping[str, Any]) -> str:
    if "cores" not in machine:
        return ""
    instructions = machine.get("instructions")
    found = f" with {instructions}" if instructions else ""
    return f"{machine['processor']}{found}, {machine['cores']} cores"


def _add(tables: dict[str, str], more: Mapping[str, str]) -> None:
    for name, text in more.items():
        if name in tables and name != ORIGIN:
            raise SettingError(f"two questions of one page have a table {name}")
        tables[name] = tables.get(name, "") + text


def _read(path: Path) -> Any:
    try:
        return orjson.loads(read_bytes(path, MAX_BYTES, str(path)))
    except orjson.JSONDecodeError as error:
        raise SettingError(f"{path}: not JSON: {error}") from None


def _filled(path: Path, tables: Mapping[str, str]) -> bytes:
    text = read_bytes(path, MAX_BYTES, str(path)).decode()
    named = [match[2] for match in TABLE.finditer(text)]
    if sorted(named) != sorted(tables):
        wrong = ", ".join(sorted(set(named) ^ set(tables))) or "one marker twice"
        raise SettingError(f"{path}: markers and tables differ: {wrong}")
    return TABLE.sub(lambda match: f"{match[1]}{tables[match[2]]}{match[4]}", text).encode()


ADVICE = "; end them"
"""The advice in a reason begins here; readers of results do not need it."""
Measured = Mapping[str, Any]


def invalid(document: Measured, measured: Iterable[Measured], name: Callable[[Measured], str]) -> str:
    """A Markdown list of the INVALID entries of `measured` with their reasons, after a note if the run ended
    early."""
    lines = [
        f"- {name(one)}: {'; '.join(reasons)}\n"
        for one in measured
        if (reasons := _reasons_of(one["reasons"]))
    ]
    early = "The run was ended early: this is what was measured until then.\n\n"
    return ("" if document["complete"] else early) + ("".join(lines) or "Nothing is INVALID.\n")


def _reasons_of(found: Any) -> list[str]:
    reasons = found if isinstance(found, list) else [text for each in found.values() for text in each]
    return list(dict.fromkeys(reason.partition(ADVICE)[0] for reason in reasons))
