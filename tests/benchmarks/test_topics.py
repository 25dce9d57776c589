"""The measurement of topics, on a small file and a fake embedding."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from benchmarks.clusterings import adjusted_rand, mutual_information
from benchmarks.topics import Labelled, followed, leader_clusters, measure_topics, read_labelled
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.topics.embedding import find_embedding_model
from forebay.apps.topics.minilm import MiniLM
from forebay.apps.topics.values import TopicEvent, TopicSettings
from forebay.settings import load_settings


def test_known_values() -> None:
    # Values of scikit-learn 1.9 for the same labels.
    gold, found = [0, 0, 1, 1, 2, 2, 2], ["a", "b", "b", "b", "c", "c", "a"]
    assert mutual_information(gold, found) == pytest.approx(0.5636355530993447, abs=1e-9)
    assert adjusted_rand(gold, found) == pytest.approx(0.2125, abs=1e-9)


SUBJECTS = ("storm lisbon flood rain", "goal final penalty referee", "album song concert tour")
DATA = Path(__file__).parents[3] / "shared" / "data"


def embed(texts: Sequence[str]) -> np.ndarray:
    """The mean of the words' random vectors."""
    rows = [
        np.mean(
            [np.random.default_rng(zlib.crc32(w.encode())).normal(size=32) for w in t.split() or [""]], axis=0
        )
        for t in texts
    ]
    return np.stack([row / np.linalg.norm(row) for row in rows]).astype(np.float32)


def labelled(count: int = 600) -> Labelled:
    rng = np.random.default_rng(1)
    gold = tuple(int(each) for each in rng.integers(3, size=count))
    return Labelled(
        "made-up.jsonl", tuple(" ".join(rng.permutation(SUBJECTS[g].split())[:3]) for g in gold), gold
    )


def test_the_report_has_the_fields_that_are_promised() -> None:
    report = measure_topics(labelled(), embed)
    assert report["nmi"] > 0.9
    assert report["ari"] > 0.9
    assert (report["gold"], report["texts"]) == (3, 600)
    assert 3 <= report["clusters"] <= 6
    assert report["texts_per_s"] > 0
    assert report["texts_per_s_embedded"] > 0
    assert {"nmi", "ari", "clusters", "gold", "texts_per_s"} <= report["baselines"][
        "leader_minilm_0.4"
    ].keys()
    assert "mstream_published" not in report["baselines"]
    named = Labelled("mstream_tweets.jsonl", *(field for field in (labelled().texts, labelled().gold)))
    assert measure_topics(named, embed)["baselines"]["mstream_published"] == {"nmi": 0.844}


def test_topics_are_followed_to_their_ends() -> None:
    events = [
        TopicEvent("merged", 1, 0, 1, into=2),
        TopicEvent("folded", 2, 0, 1, into=5),
        TopicEvent("folded", 3, 0, 1, into=None),
        TopicEvent("died", 4, 0, 1),
    ]
    assert followed([0, 1, 2, 3, 4, -1], events) == [0, 5, 5, 3, 4, -1]


def test_leaders() -> None:
    vectors = np.array([[1, 0], [0, 1], [0.9, 0.1], [0.1, 0.9]], np.float32)
    assert leader_clusters(vectors) == [0, 1, 0, 1]
    assert len(set(leader_clusters(np.eye(1030, dtype=np.float32)))) == 1030


def test_a_labelled_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(
        '{"textCleaned": "a b", "clusterNo": 3, "x": 1}\n\n{"textCleaned": "", "clusterNo": "k"}\n'
    )
    assert read_labelled(path) == Labelled("some.jsonl", ("a b", ""), (3, "k"))


def test_real_news_are_clustered_better_than_by_leaders() -> None:
    path, model = DATA / "mstream_news_t.jsonl", find_embedding_model(load_settings())
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    if model is None:
        pytest.skip("the embedding model is not installed: forebay setup --embeddings")
    data = read_labelled(path)
    part = Labelled("part.jsonl", data.texts[:1500], data.gold[:1500])
    report = measure_topics(part, MiniLM(model).embed, TopicSettings())
    leader = report["baselines"]["leader_minilm_0.4"]
    assert report["nmi"] > leader["nmi"] + 0.01
    assert report["ari"] > leader["ari"] + 0.02
    assert report["clusters"] <= 1.5 * report["gold"]


pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40)


@given(pairs)
def test_cluster_names_do_not_matter_and_scores_are_at_most_1(both: list[tuple[int, int]]) -> None:
    gold, found = [a for a, _ in both], [b for _, b in both]
    for measure in (mutual_information, adjusted_rand):
        value = measure(gold, found)
        assert value <= 1 + 1e-9
        assert measure(found, gold) == pytest.approx(value)
        assert measure([5 - a for a in gold], found) == pytest.approx(value)
        assert measure(gold, gold) == pytest.approx(1)


def test_one_cluster_has_no_agreement() -> None:
    assert mutual_information([0, 0, 1, 1], [0, 0, 0, 0]) == 0
    assert adjusted_rand([0, 0, 1, 1], [0, 0, 0, 0]) == 0
