"""What a file looks like by its beginning, where that is not what it was taken for."""

from __future__ import annotations

from collections.abc import Sequence

SEPARATORS = {b",": "", b";": ' and `delimiter: ";"`', b"\t": ' and `delimiter: "\\t"`'}


def likely_instead(lines: Sequence[bytes]) -> str:
    """What `lines`, the first of a file of which none is a JSON object, may be instead, and what to do; empty
    where that is not known. Lines are without their ends."""
    first = next((line.strip() for line in lines if line.strip()), b"")
    if first.startswith(b"["):
        return "it looks like a JSON array, and JSON lines have one object a line: jq -c '.[]' makes them"
    if first.startswith(b"{"):
        return (
            "it looks like JSON over several lines, and JSON lines have one object a line: jq -c . makes them"
        )
    for separator, option in SEPARATORS.items():
        if separator in first and all(separator in line for line in lines[:2]):
            return f"it looks like CSV: use `type: csv`{option}"
    return ""
