"""Text of events in prompts: always between marks that it cannot write itself."""

from __future__ import annotations

import re


def quoted(tag: str, text: str) -> str:
    """`text` between `<tag>` and `</tag>`; where it begins such a mark itself, `<` becomes `‹`."""
    mark = re.compile(rf"<(?=\s*/?\s*{re.escape(tag)})", re.IGNORECASE)
    return f"<{tag}>\n{mark.sub('‹', text)}\n</{tag}>"
