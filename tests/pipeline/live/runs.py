"""A run whose snapshots and committed files a test writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from forebay.pipeline.live.outputs import RunOutputs
from forebay.pipeline.live.view import LivePage
from forebay.pipeline.load import parse_spec

ATTACK = "</script><script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"


class Run:
    def __init__(self, folder: Path, *, replicas: int | None = None, **changes: Any) -> None:
        document = {
            "name": "tickets",
            "source": {"type": "generator"},
            "sink": {"type": "jsonl", "path": "results"},
            "dead_letters": {"type": "jsonl", "path": "letters"},
            **({} if "application" in changes else {"prompt": "{{ text }}"}),
        }
        self.spec = parse_spec({**document, **changes}, base=folder)
        self.folder = folder
        self.outputs = RunOutputs(self.spec, keep_all=True)
        self.page = LivePage(self.spec, self.outputs, replicas=replicas)
        self._files = 0

    def commit(self, kind: str, *lines: dict[str, Any]) -> None:
        """Commit lines to `results` or `letters`, and read them."""
        self._files += 1
        place = self.folder / kind
        place.mkdir(exist_ok=True)
        (place / f"part-x-{self._files}.jsonl").write_bytes(
            b"".join(orjson.dumps(line) + b"\n" for line in lines)
        )
        self.outputs.look()


def result(
    number: int, *, key: str | None = "ann", answer: Any = "billing", text: str = "hello"
) -> dict[str, Any]:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return {"id": f"t-{number}", "key": key, "fields": {"text": text}, "answer": answer, "usage": usage}


def letter(cause: str, detail: str = "too slow", text: str = "hello") -> dict[str, Any]:
    return {"cause": cause, "detail": detail, "id": "t-9", "key": None, "position": "in@9", "input": text}


def trend(number: int = 0, name: str = "storm", texts: tuple[str, ...] = ("big storm",)) -> dict[str, Any]:
    answer = {
        "kind": "born", "trend": number, "name": name, "terms": ["storm"], "time_ms": 60_000,
        "onset_ms": 50_000, "peak_ms": 65_000, "rate_per_s": 2.5, "now_per_s": 2.5, "peak_per_s": 2.5,
        "base_per_s": 0.1, "score": 20.0 - number, "rises": 1, "into": None, "texts": list(texts),
    }  # fmt: skip
    return {"id": f"trend-{number}-born", "key": str(number), "answer": answer, "usage": {}}
