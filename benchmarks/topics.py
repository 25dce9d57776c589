"""Measures topics on texts with known clusters, against simple baselines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from threadpoolctl import threadpool_limits

from benchmarks.clusterings import adjusted_rand, mutual_information, river_baselines
from benchmarks.clusterings import is_installed as river_baselines_are_installed
from forebay.apps.topics.finder import TopicFinder
from forebay.apps.topics.values import TopicEvent, TopicSettings
from forebay.errors import SettingError

Floats = npt.NDArray[np.float32]

PUBLISHED_NMI = {"mstream_tweets.jsonl": 0.844, "mstream_news_t.jsonl": 0.850}
"""MStream's own figures (Yin et al., KDD 2018)."""
LEADER_THRESHOLD = 0.4
BATCH = 256
MAX_FILE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Labelled:
    """Texts in the stream's order, each with its cluster number."""

    name: str
    texts: tuple[str, ...]
    gold: tuple[int | str, ...]


def read_labelled(path: Path) -> Labelled:
    """Read JSON lines with `textCleaned` and `clusterNo`."""
    texts: list[str] = []
    gold: list[int | str] = []
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SettingError(f"{path} has more than 1 GiB; give a smaller file")
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
                text, cluster = row["textCleaned"], row["clusterNo"]
            except (orjson.JSONDecodeError, KeyError, TypeError):
                text = cluster = None
            if not isinstance(text, str) or not isinstance(cluster, int | str):
                raise SettingError(f"{path}:{number}: expected a JSON object with textCleaned and clusterNo")
            texts.append(text)
            gold.append(cluster)
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}") from None
    if not texts:
        raise SettingError(f"{path} holds no texts")
    return Labelled(path.name, tuple(texts), tuple(gold))


def measure_topics(
    data: Labelled,
    embed: Callable[[Sequence[str]], Floats],
    settings: TopicSettings | None = None,
    note: Callable[[str], None] = lambda line: None,
    *,
    river: bool = False,
) -> dict[str, Any]:
    """Quality and speed of the topics of a labelled stream, and of the baselines on the same
    embeddings."""
    began = time.monotonic()
    parts = []
    for start in range(0, len(data.texts), BATCH):
        parts.append(embed(data.texts[start : start + BATCH]))
        if start % (BATCH * 16) == 0:
            note(f"{data.name}: {start} of {len(data.texts)} texts embedded")
    vectors = np.concatenate(parts)
    embedding_s = time.monotonic() - began
    note(f"{data.name}: clusters")
    with threadpool_limits(1, "blas"):
        began, used = time.monotonic(), time.process_time()
        finder = TopicFinder(settings or TopicSettings(), vectors.shape[1])
        topics: list[int] = []
        events: list[TopicEvent] = []
        state = most_live = 0
        for start in range(0, len(data.texts), BATCH):
            texts = data.texts[start : start + BATCH]
            # The files have no times: assume one text per second.
            found = finder.add(
                texts, vectors[start : start + BATCH], [1000 * (start + i) for i in range(len(texts))]
            )
            topics += found.topics
            events += found.events
            most_live = max(most_live, finder.live)
        state = len(finder.to_bytes())
        events += finder.finish()
        used, took = time.process_time() - used, time.monotonic() - began
        leader, leader_s = _timed(lambda: leader_clusters(vectors))
    final = followed(topics, events)
    kinds = [event.kind for event in events]
    return {
        **_agreement(data.gold, final),
        "texts": len(data.texts),
        "texts_per_s": len(data.texts) / used,
        "texts_per_s_embedded": len(data.texts) / (took + embedding_s),
        "at_arrival": _agreement(data.gold, topics),
        "state_mib": state / 2**20,
        "live_clusters_max": most_live,
        "events": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "baselines": {
            "leader_minilm_0.4": {**_agreement(data.gold, leader), "texts_per_s": len(data.texts) / leader_s},
            **(
                river_baselines(data.texts, data.gold, vectors, final, note)
                if river and river_baselines_are_installed()
                else {}
            ),
            **(
                {"mstream_published": {"nmi": PUBLISHED_NMI[data.name]}} if data.name in PUBLISHED_NMI else {}
            ),
        },
    }


def followed(topics: Sequence[int], events: Iterable[TopicEvent]) -> list[int]:
    """The topics at the end of the stream: each replaced by the one that it was merged or folded into."""
    into = {event.topic: event.into for event in events if event.into is not None}

    def end(topic: int) -> int:
        while (further := into.get(topic)) is not None:
            topic = further
        return topic

    return [end(topic) for topic in topics]


def leader_clusters(vectors: Floats) -> list[int]:
    """Leader clustering: join the nearest centre within the threshold, or start one; centres are means."""
    sums = np.zeros((1024, vectors.shape[1]), np.float32)
    units = np.zeros_like(sums)
    live = 0
    found = []
    for vector in vectors:
        cosines = units[:live] @ vector
        row = int(cosines.argmax()) if live else 0
        if not live or cosines[row] < LEADER_THRESHOLD:
            row, live = live, live + 1
            if live > len(sums):
                sums, units = (np.concatenate([array, np.zeros_like(array)]) for array in (sums, units))
        sums[row] += vector
        units[row] = sums[row] / np.linalg.norm(sums[row])
        found.append(row)
    return found


def _agreement(gold: Sequence[Any], found: Sequence[int]) -> dict[str, Any]:
    return {
        "nmi": mutual_information(gold, found),
        "ari": adjusted_rand(gold, found),
        "clusters": len(set(found)),
        "gold": len(set(gold)),
    }


def _timed(work: Callable[[], list[int]]) -> tuple[list[int], float]:
    began = time.process_time()
    return work(), time.process_time() - began
