"""The forward pass of a small model against a plain implementation; results of the real one."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.topics.embedding import OpenMiniLM, find_embedding_model
from forebay.apps.topics.minilm import MiniLM, WordPiece, gelu, read_tensors
from forebay.errors import SetupError
from forebay.settings import load_settings

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "storm",
    "##s",
    "##y",
    "hit",
    "lisbon",
    "naive",
    "cafe",
    "!",
    "漢",
    "字",
    "$",
]
IDS = {piece: index for index, piece in enumerate(PIECES)}


def encode(text: str, **options: int) -> list[str]:
    return [PIECES[index] for index in WordPiece(PIECES, **options).encode(text)]


def test_words_are_split_into_their_longest_pieces() -> None:
    assert encode("Storms hit stormy Lisbon!") == [
        *("[CLS]", "storm", "##s", "hit", "storm", "##y", "lisbon", "!", "[SEP]")
    ]  # fmt: skip


def test_words_outside_the_vocabulary_are_unknown() -> None:
    assert encode("stormx hit") == ["[CLS]", "[UNK]", "hit", "[SEP]"]
    assert encode("storm" * 21) == ["[CLS]", "[UNK]", "[SEP]"]


def test_texts_are_normalised() -> None:
    assert encode("Naïve\u200b caf\u00e9\u0000") == ["[CLS]", "naive", "cafe", "[SEP]"]
    assert encode("漢字storm$") == ["[CLS]", "漢", "字", "storm", "$", "[SEP]"]
    assert encode("storm\thit\u00a0storm\u2028")[:4] == ["[CLS]", "storm", "hit", "storm"]


def test_long_texts_are_cut() -> None:
    assert encode("") == ["[CLS]", "[SEP]"]
    assert encode("storm " * 100, max_tokens=5) == ["[CLS]", "storm", "storm", "storm", "[SEP]"]
    assert len(WordPiece(PIECES).encode("storms" * 10 + " storm" * 500_000)) == 256


@given(st.text(max_size=200))
def test_any_text_has_ids(text: str) -> None:
    ids = WordPiece(PIECES, max_tokens=20).encode(text)
    assert ids[0] == IDS["[CLS]"]
    assert ids[-1] == IDS["[SEP]"]
    assert len(ids) <= 20
    assert set(ids[1:-1]) <= set(range(len(PIECES))) - {IDS["[CLS]"], IDS["[SEP]"], IDS["[PAD]"]}


HEADS, WIDTH, INNER, LAYERS = 2, 8, 12, 2
VOCABULARY = ["[UNK]", "[CLS]", "[SEP]", "storm", "hits", "lisbon", "goal"]
EPSILON = 1e-12


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": tensor.shape,
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    data = b"".join(tensor.tobytes() for tensor in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def weights(seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def some(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    found = {
        "embeddings.word_embeddings.weight": some(len(VOCABULARY), WIDTH),
        "embeddings.position_embeddings.weight": some(32, WIDTH),
        "embeddings.token_type_embeddings.weight": some(2, WIDTH),
        "embeddings.LayerNorm.weight": some(WIDTH),
        "embeddings.LayerNorm.bias": some(WIDTH),
    }
    for layer in range(LAYERS):
        part = f"encoder.layer.{layer}"
        shapes = {f"attention.self.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value")}
        shapes |= {
            "attention.output.dense": (WIDTH, WIDTH),
            "intermediate.dense": (INNER, WIDTH),
            "output.dense": (WIDTH, INNER),
        }
        for name, shape in shapes.items():
            found[f"{part}.{name}.weight"], found[f"{part}.{name}.bias"] = some(*shape), some(shape[0])
        for name in ("attention.output", "output"):
            found[f"{part}.{name}.LayerNorm.weight"], found[f"{part}.{name}.LayerNorm.bias"] = (
                some(WIDTH),
                some(WIDTH),
            )
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = {"num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "layer_norm_eps": EPSILON}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    write_tensors(tmp_path / "model.safetensors", weights())
    return tmp_path


def plainly(ids: list[int], w: dict[str, np.ndarray]) -> np.ndarray:
    """The same network, one text and one head at a time."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scaled = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPSILON)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    size = WIDTH // HEADS
    for layer in range(LAYERS):
        part = f"encoder.layer.{layer}"
        query, key, value = (linear(x, f"{part}.attention.self.{name}") for name in ("query", "key", "value"))
        heads = []
        for head in range(HEADS):
            at = slice(head * size, (head + 1) * size)
            scores = np.exp(query[:, at] @ key[:, at].T / math.sqrt(size))
            heads.append(scores / scores.sum(1, keepdims=True) @ value[:, at])
        x = norm(
            x + linear(np.concatenate(heads, axis=1), f"{part}.attention.output.dense"),
            f"{part}.attention.output.LayerNorm",
        )
        inner = linear(x, f"{part}.intermediate.dense")
        inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        x = norm(x + linear(inner, f"{part}.output.dense"), f"{part}.output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


@pytest.mark.parametrize("threads", [1, 3])
def test_vectors_equal_those_of_a_plain_implementation(
    model: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr("forebay.apps.topics.minilm.BATCH_TOKENS", 12)
    monkeypatch.setattr("forebay.apps.topics.minilm.ROWS_AT_ONCE", 5)
    words = [[], [3], [4, 5], [6, 6, 6], [3, 4, 5, 6], [5], [3, 6], [0, 4]]
    texts = [" ".join("xyz" if word == 0 else VOCABULARY[word] for word in each) for each in words]
    found = MiniLM(model, threads=threads).embed(texts)
    wanted = np.stack([plainly([1, *each, 2], weights()) for each in words])
    assert found == pytest.approx(wanted, abs=2e-5)


def test_no_texts_give_no_vectors(model: Path) -> None:
    assert MiniLM(model).embed([]).shape == (0, WIDTH)


def test_the_activation_is_exact_enough() -> None:
    x = np.linspace(-8, 8, 4001).astype(np.float32)
    y = x.copy()
    gelu(y)
    wanted = [value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x.tolist()]
    assert y == pytest.approx(wanted, abs=2e-6)


@pytest.mark.parametrize("wrong", ["missing", "config", "header", "tensor"])
def test_a_folder_without_a_model_is_reported(model: Path, wrong: str) -> None:
    if wrong == "missing":
        (model / "vocab.txt").unlink()
    elif wrong == "config":
        (model / "config.json").write_text("{}")
    elif wrong == "header":
        (model / "model.safetensors").write_bytes(b"\xff" * 100)
    else:
        write_tensors(model / "model.safetensors", dict(list(weights().items())[:-1]))
    with pytest.raises(SetupError, match="is not a readable MiniLM"):
        MiniLM(model)


def test_tensors_of_other_types_are_skipped(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "t").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert read_tensors(tmp_path / "t") == {}


@pytest.mark.heavy
def test_real_model_finds_similar_texts() -> None:
    model = find_embedding_model(load_settings())
    if model is None:
        pytest.skip("the embedding model is not installed: forebay setup --embeddings")
    a, b, c = MiniLM(model).embed(
        ["a storm hits Lisbon", "Lisbon struck by heavy weather", "he scored a late goal"]
    )
    assert a @ b > 0.6
    assert a @ c < 0.2


def test_copies_are_embedded_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.apps.topics.minilm.REMEMBERED_TEXTS", 2)
    minilm = MiniLM(model)
    passes = []
    forward = minilm._forward
    monkeypatch.setattr(minilm, "_forward", lambda texts: passes.append(len(texts)) or forward(texts))
    first = minilm.embed(["storm", "goal", "storm"])
    again = minilm.embed(["goal", "storm", "lisbon", "storm"])
    assert (first[0] == first[2]).all()
    assert (again[[1, 0]] == first[:2]).all()
    assert sum(passes) == 3
    # Two are remembered: the storm and Lisbon.
    minilm.embed(["lisbon"])
    assert sum(passes) == 3
    minilm.embed(["goal"])
    assert sum(passes) == 4


def test_without_a_cache_earlier_texts_change_no_digit(model: Path) -> None:
    one, other = OpenMiniLM(model, threads=1)(), OpenMiniLM(model, threads=1)()
    one.embed(["storm hits lisbon", "goal"])
    texts = ["goal", "storm", "storm hits", "goal"]
    assert (one.embed(texts) == other.embed(texts)).all()
    assert one.width == WIDTH
