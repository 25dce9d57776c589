"""What to look at after a run that gave dead letters and nothing else."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from forebay.cli.terminal import say

if TYPE_CHECKING:
    from rich.console import Console

MOST_LOOKED_AT = 10_000
MOST_CHARS = 200


def show_lost(folder: str | None, console: Console) -> None:
    """Name the most frequent cause among the first dead letters in `folder`, and an example.

    None: they lie in no folder, and nothing is shown.
    """
    from forebay.connectors.files.sink import read_jsonl_sink

    if folder is None:
        return
    causes: Counter[str] = Counter()
    details: dict[str, str] = {}
    for line in islice(read_jsonl_sink(Path(folder)), MOST_LOOKED_AT):
        letter = orjson.loads(line)
        causes[letter["cause"]] += 1
        details.setdefault(letter["cause"], letter["detail"])
    for cause, _ in causes.most_common(1):
        words = details[cause][:MOST_CHARS].replace("\n", " ")
        say(console, f"no results, only dead letters, most often {cause}: {words}")
