"""Lists why figures of a document are in brackets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

MEND = "; end them"
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
    told = found if isinstance(found, list) else [text for each in found.values() for text in each]
    return list(dict.fromkeys(reason.partition(MEND)[0] for reason in told))
