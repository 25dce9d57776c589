"""Embedders and how they are opened."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from forebay.apps.topics.embedding import NoEmbedding, OpenMiniLM
from forebay.errors import SetupError


def test_folder_without_a_model_is_rejected_on_opening(tmp_path: Path) -> None:
    opener = pickle.loads(pickle.dumps(OpenMiniLM(tmp_path)))
    with pytest.raises(SetupError, match="is not a readable MiniLM"):
        opener()


def test_embeddings_have_no_nan_rows() -> None:
    assert NoEmbedding().embed(["a", "b"]).shape == (2, 0)
