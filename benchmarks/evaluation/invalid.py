"""Why figures of a document stand in brackets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

MEND = "; end them"
"""Where what would mend it begins in a reason: of no use to a reader of results."""
Measured = Mapping[str, Any]


def invalid(document: Measured, measured: Iterable[Measured], name: Callable[[Measured], str]) -> str:
    """A list in Markdown: what is INVALID of `measured`, and why; before it, whether the run ended early."""
    lines = [
        f"- {name(one)}: {'; '.join(reasons)}\n"
        for one in measured
        if (reasons := _reasons_of(one["reasons"]))
    ]
    early = "The run was ended early: this is what was measured until then.\n\n"
    return ("" if document["complete"] else early) + ("".join(lines) or "Nothing is INVALID.\n")


def _reasons_of(found: Any) -> list[str]:
    """Each reason once, of a list or of lists by name."""
    told = found if isinstance(found, list) else [text for each in found.values() for text in each]
    return list(dict.fromkeys(reason.partition(MEND)[0] for reason in told))
