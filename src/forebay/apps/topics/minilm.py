"""Sentence embeddings with a MiniLM of the BERT family, in numpy.

The forward pass is BERT's (Devlin et al. 2018: post-norm transformer, GELU). The sentence vector is the mean
of the token vectors (Reimers and Gurevych 2019), scaled to length 1.
"""

from __future__ import annotations

import unicodedata
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from threadpoolctl import threadpool_limits

from forebay.errors import SetupError

MAX_WORD_CHARS = 100
MAX_TEXT_CHARS = 8192
CACHED_WORDS = 65_536


class WordPiece:
    """Tokenizer of BERT's uncased models.

    `vocabulary` lists the pieces by id. A text becomes `[CLS] … [SEP]`, truncated to `max_tokens` ids.
    Normalisation follows Devlin et al. 2018.
    """

    def __init__(self, vocabulary: Sequence[str], *, max_tokens: int = 256) -> None:
        self._ids = {piece: index for index, piece in enumerate(vocabulary)}
        self._unknown = self._ids["[UNK]"]
        self._begin, self._end = self._ids["[CLS]"], self._ids["[SEP]"]
        self._max_pieces = max_tokens - 2
        self._pieces = lru_cache(CACHED_WORDS)(self._split)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = [self._begin]
        for word in _words(text[:MAX_TEXT_CHARS]):
            ids += self._pieces(word)
            if len(ids) > self._max_pieces:
                break
        return [*ids[: self._max_pieces + 1], self._end]

    def _split(self, word: str) -> tuple[int, ...]:
        if len(word) > MAX_WORD_CHARS:
            return (self._unknown,)
        found: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                piece = self._ids.get(prefix + word[start:end])
                if piece is not None:
                    found.append(piece)
                    start = end
                    break
            else:
                return (self._unknown,)
        return tuple(found)


def _words(text: str) -> list[str]:
    if not text.isascii():
        text = "".join(_spaced(character) for character in text)
        text = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    else:
        text = text.lower()
    if text.replace(" ", "").isalnum():
        return text.split()
    return "".join(_apart(character) for character in text).split()


def _spaced(character: str) -> str:
    return f" {character} " if _is_chinese(ord(character)) else character


@lru_cache(4096)
def _apart(character: str) -> str:
    category = unicodedata.category(character)
    if character in "\t\n\r" or category == "Zs":
        return " "
    if category[0] == "C" or character == "\ufffd":
        return ""
    code = ord(character)
    ascii_mark = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return f" {character} " if ascii_mark or category[0] == "P" else character


CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def _is_chinese(code: int) -> bool:
    return code >= 0x3400 and any(low <= code <= high for low, high in CHINESE)


Floats = npt.NDArray[np.float32]

BATCH_TOKENS = 768
"""Tokens per forward pass: enough for efficient matrix products, few enough for CPU caches."""
REMEMBERED_TEXTS = 8192
MAX_REMEMBERED_CHARS = 1000
ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Linear:
    weight: Floats
    bias: Floats

    def __call__(self, x: Floats) -> Floats:
        y: Floats = x @ self.weight
        y += self.bias
        return y


@dataclass(frozen=True, slots=True)
class Norm:
    gain: Floats
    bias: Floats
    epsilon: float

    def __call__(self, x: Floats) -> Floats:
        x -= x.mean(axis=1, keepdims=True)
        x *= 1 / np.sqrt(np.einsum("ij,ij->i", x, x)[:, None] / x.shape[1] + np.float32(self.epsilon))
        x *= self.gain
        x += self.bias
        return x


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    heads: int
    attend: Linear
    project: Linear
    project_norm: Norm
    widen: Linear
    narrow: Linear
    narrow_norm: Norm

    def __call__(self, x: Floats, groups: Sequence[tuple[int, int, int]]) -> Floats:
        """`groups`: (first row, number of texts, tokens per text); texts of equal length are adjacent."""
        width = x.shape[1]
        mixed = self.attend(x)
        context = np.empty_like(x)
        for first, texts, length in groups:
            rows = slice(first, first + texts * length)
            split = mixed[rows].reshape(texts, length, 3, self.heads, width // self.heads)
            query, key, value = split.transpose(2, 0, 3, 1, 4)
            scores = query @ key.transpose(0, 1, 3, 2)
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            context[rows] = (scores @ value).transpose(0, 2, 1, 3).reshape(texts * length, width)
        y = self.project(context)
        y += x
        y = self.project_norm(y)
        inner = self.widen(y)
        for start in range(0, len(inner), ROWS_AT_ONCE):
            gelu(inner[start : start + ROWS_AT_ONCE])
        z = self.narrow(inner)
        z += y
        return self.narrow_norm(z)


def gelu(x: Floats) -> None:
    """`x · Φ(x)` in place, with erf by formula 7.1.26 of Abramowitz and Stegun (error below 1.5e-7)."""
    size = np.abs(x)
    t = 1 / (1 + np.float32(0.3275911 / 2**0.5) * size)
    tail = np.float32(1.061405429) * t
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += np.float32(coefficient)
        tail *= t
    tail *= np.exp(np.float32(-0.5) * size * size)
    # x Φ(x) = max(x, 0) − |x| · tail / 2
    tail *= size
    tail *= np.float32(0.5)
    np.maximum(x, 0, out=x)
    x -= tail


class MiniLM:
    """Text embeddings of length 1 (float32). Thread-safe; one instance uses about 110 MB."""

    def __init__(self, model: Path, *, threads: int = 1, remembered: int | None = None) -> None:
        """Load `model.safetensors`, `config.json` and `vocab.txt`. Raises `SetupError`.

        Forward passes run on `threads` threads with one core each: for small products this is faster than
        BLAS threads, which are off meanwhile. The latest `remembered` texts are cached, because streams
        contain many copies. The last digits of a vector depend on its batch: with 0 remembered, the same
        calls give the same vectors in any process.
        """
        self._remembered = REMEMBERED_TEXTS if remembered is None else remembered
        self._lately: OrderedDict[str, Floats] = OrderedDict()
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(threads, "embed") if threads > 1 else None
        try:
            config = orjson.loads((model / "config.json").read_bytes())
            vocabulary = (model / "vocab.txt").read_text(encoding="utf-8").splitlines()
            tensors = read_tensors(model / "model.safetensors")
            self._tokenizer = WordPiece(vocabulary)
            self._build(config, tensors)
        except (OSError, ValueError, KeyError) as error:
            raise SetupError(f"{model} is not a readable MiniLM: {error!r}") from None

    def _build(self, config: dict[str, Any], tensors: dict[str, Floats]) -> None:
        epsilon = config["layer_norm_eps"]

        def linear(*names: str) -> Linear:
            weight = np.concatenate([tensors[f"{name}.weight"] for name in names]).T
            return Linear(
                np.ascontiguousarray(weight), np.concatenate([tensors[f"{name}.bias"] for name in names])
            )

        def norm(name: str) -> Norm:
            return Norm(tensors[f"{name}.weight"], tensors[f"{name}.bias"], epsilon)

        self._words = tensors["embeddings.word_embeddings.weight"]
        self._places = (
            tensors["embeddings.position_embeddings.weight"]
            + tensors["embeddings.token_type_embeddings.weight"][0]
        )
        self._norm = norm("embeddings.LayerNorm")
        self._layers: list[EncoderLayer] = []
        heads = config["num_attention_heads"]
        for index in range(config["num_hidden_layers"]):
            part = f"encoder.layer.{index}"
            attend = linear(*(f"{part}.attention.self.{name}" for name in ("query", "key", "value")))
            # Fold the scale of the scores into the query.
            width = attend.weight.shape[0]
            attend.weight[:, :width] /= np.float32((width // heads) ** 0.5)
            attend.bias[:width] /= np.float32((width // heads) ** 0.5)
            self._layers.append(
                EncoderLayer(
                    heads,
                    attend,
                    linear(f"{part}.attention.output.dense"),
                    norm(f"{part}.attention.output.LayerNorm"),
                    linear(f"{part}.intermediate.dense"),
                    linear(f"{part}.output.dense"),
                    norm(f"{part}.output.LayerNorm"),
                )
            )

    @property
    def width(self) -> int:
        return int(self._words.shape[1])

    def embed(self, texts: Sequence[str]) -> Floats:
        """One row per text. Blocks for about 3 ms per short text and core, less for cached ones."""
        with self._lock:
            known = {text: self._lately[text] for text in texts if text in self._lately}
        new = [text for text in dict.fromkeys(texts) if text not in known]
        known.update((text, vector.copy()) for text, vector in zip(new, self._embed(new), strict=True))
        with self._lock:
            for text, vector in known.items():
                self._lately.pop(text, None)
                if len(text) <= MAX_REMEMBERED_CHARS:
                    self._lately[text] = vector
            while len(self._lately) > self._remembered:
                self._lately.popitem(last=False)
        vectors = np.empty((len(texts), self.width), np.float32)
        for index, text in enumerate(texts):
            vectors[index] = known[text]
        return vectors

    def _embed(self, texts: Sequence[str]) -> Floats:
        ids = [self._tokenizer.encode(text) for text in texts]
        batches: list[list[int]] = []
        tokens = BATCH_TOKENS
        for index in sorted(range(len(ids)), key=lambda index: len(ids[index])):
            if tokens + len(ids[index]) > BATCH_TOKENS:
                batches.append([])
                tokens = 0
            batches[-1].append(index)
            tokens += len(ids[index])
        vectors = np.empty((len(ids), self.width), np.float32)

        def run(batch: list[int]) -> None:
            vectors[batch] = self._forward([ids[index] for index in batch])

        with threadpool_limits(1, "blas"):
            for _ in self._pool.map(run, batches) if self._pool else map(run, batches):
                pass
        return vectors

    def _forward(self, texts: list[list[int]]) -> Floats:
        groups: list[tuple[int, int, int]] = []
        row = 0
        for length in sorted({len(text) for text in texts}):
            count = sum(len(text) == length for text in texts)
            groups.append((row, count, length))
            row += count * length
        x: Floats = self._words[np.concatenate([np.asarray(text) for text in texts])]
        for first, count, length in groups:
            x[first : first + count * length].reshape(count, length, -1)[:] += self._places[:length]
        x = self._norm(x)
        for layer in self._layers:
            x = layer(x, groups)
        means: Floats = np.concatenate(
            [x[first : first + n * length].reshape(n, length, -1).mean(axis=1) for first, n, length in groups]
        )
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        return means


MAX_HEADER_BYTES = 16 << 20


def read_tensors(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """All float32 tensors of a file by name.

    Raises `OSError` if it cannot be read, `ValueError` if it is malformed.
    """
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    if not 0 < length <= min(MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError(f"{path.name} is not a safetensors file: its header has {length} bytes")
    header = orjson.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"]).copy()
    return tensors
