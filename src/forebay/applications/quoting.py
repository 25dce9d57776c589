"""Text of events in prompts: always between marks that it cannot write itself."""

from __future__ import annotations

import re


def quoted(tag: str, text: str) -> str:
    """`text` between `<tag>` and `</tag>`; such a mark within it gets the brackets `‹` and `›`."""
    mark = re.compile(rf"<(\s*/?\s*{re.escape(tag)}\b[^<>]*)>", re.IGNORECASE)
    inner = mark.sub(lambda found: f"‹{found[1]}›", text)
    return f"<{tag}>\n{inner}\n</{tag}>"
