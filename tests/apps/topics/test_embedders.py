"""Embedders and how they are opened."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from forebay.apps.topics.embedding import NoEmbedding, OpenMiniLM
from forebay.errors import SetupError


def test_a_folder_without_a_model_is_refused_where_it_is_opened(tmp_path: Path) -> None:
    opener = pickle.loads(pickle.dumps(OpenMiniLM(tmp_path)))
    with pytest.raises(SetupError, match="is not a readable MiniLM"):
        opener()


def test_no_embedding_has_rows_of_no_numbers() -> None:
    assert NoEmbedding().embed(["a", "b"]).shape == (2, 0)
