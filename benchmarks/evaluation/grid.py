"""The page about the grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.evaluation.page import Page, Records, Rendered, invalid, origin, table
from benchmarks.grid.document import cell_rows, engine_rows, grid_picture, parallelism_name, short_model

RECORDS = ("grid.json", "grid-random.json")
Document = Mapping[str, Any]


def render(records: Records) -> Rendered:
    documents = {name.removesuffix(".json"): found for name, found in records.items()}
    tables = {"origin": origin(records)}
    for name, document in documents.items():
        engine_table, cell_table = engine_rows(document), cell_rows(document)
        tables[f"{name}-engines"] = table(engine_table[0], engine_table[1:])
        tables[f"{name}-cells"] = table(cell_table[0], cell_table[1:])
        tables[f"{name}-invalid"] = invalid(document, (*document["engines"], *document["cells"]), name_of)
    cells = [cell for document in documents.values() for cell in document["cells"]]
    valid = sum(cell["valid"] for cell in cells)
    return Rendered(
        tables=tables,
        plots={f"{name}.svg": grid_picture(document) for name, document in documents.items()},
        finding=f"{valid or 'None'} of {len(cells)} cells valid as a whole. {throughput(documents.values())}",
    )


def throughput(documents: Any) -> str:
    """The valid engines' output tokens per second, by how uneven the answers are; how many are not valid."""
    engines = [engine for document in documents for engine in document["engines"]]
    detail = []
    for engine in engines:
        rates = [
            f"{found['output_tokens_per_s']:.0f} ({tail})"
            for tail, found in engine["at_once"].items()
            if tail not in engine["reasons"]
        ]
        if rates:
            detail.append(f"{in_words(engine)}: {', '.join(rates)}")
    doubtful = len(engines) - len(detail)
    rest = f" {doubtful} of {len(engines)} engines are INVALID: they cannot be compared yet."
    found = f"Output tokens/s by lengths, all requests at once: {'; '.join(detail)}."
    return (found if detail else "No engine's throughput is valid.") + (rest if doubtful else "")


def name_of(one: Document) -> str:
    name = f"{short_model(one['model'])}, {parallelism_name(one['parallelism'])}"
    return f"{name}, {one['arrival']}, {one['tail']}" if "arrival" in one else f"{name}, all at once"


def in_words(one: Document) -> str:
    """An engine, for the front page, which has no table to explain the numbers."""
    of = one["parallelism"]
    cores = "" if of["cores_each"] is None else f" on {of['cores_each']} core{'s' * (of['cores_each'] > 1)}"
    return f"{short_model(one['model'])}, {of['replicas']} replica{'s' * (of['replicas'] > 1)}{cores}"


PAGE = Page("grid", "What do models, replicas, arrivals and lengths of answers do?", RECORDS, render)
