"""The tokenizer, held against ids that BERT's own tokenizer gave for the same vocabulary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.embed.wordpiece import WordPiece

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


def test_words_become_their_longest_pieces() -> None:
    assert encode("Storms hit stormy Lisbon!") == [
        *("[CLS]", "storm", "##s", "hit", "storm", "##y", "lisbon", "!", "[SEP]")
    ]  # fmt: skip


def test_what_the_vocabulary_lacks_is_unknown() -> None:
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
