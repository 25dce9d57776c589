"""Blocks that vLLM counts for a request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.planning.kv_cache import CachedLayers, reserved_bytes

LAYERS = st.integers(1, 80)
BYTES = st.sampled_from([512.0, 1024.0, 4096.0, 6144.0, 8192.0])
KINDS = st.lists(
    st.one_of(
        st.builds(CachedLayers, LAYERS, BYTES),
        st.builds(CachedLayers, LAYERS, BYTES, window=st.integers(1, 10_000), chunked=st.booleans()),
        st.builds(CachedLayers, LAYERS, state_bytes=st.floats(1.0, 1e7), states=st.integers(1, 3)),
    ),
    min_size=1,
    max_size=3,
).filter(lambda kinds: any(one.token_bytes for one in kinds))


@given(KINDS, st.integers(1, 200_000), st.integers(1, 16_384))
def test_at_least_what_is_held_is_reserved(kinds: list[CachedLayers], tokens: int, step_tokens: int) -> None:
    found = reserved_bytes(kinds, tokens, step_tokens)
    held = sum(one.held_bytes(tokens) for one in kinds)
    assert found >= held * (1 - 1e-9)
    assert found <= reserved_bytes(kinds, tokens + 16, step_tokens)
    assert found <= reserved_bytes(kinds, tokens, 2 * step_tokens)


def test_one_kind_of_layers_has_blocks_and_no_gaps() -> None:
    assert reserved_bytes([CachedLayers(32, 1024.0)], 100, 2048) == 32 * 7 * 16 * 1024
    window = CachedLayers(32, 1024.0, window=100)
    assert reserved_bytes([window], 10_000, 50) == 32 * (10 + 1) * 16 * 1024
    assert reserved_bytes([window], 64, 50) == 32 * (4 + 1) * 16 * 1024
    chunk = CachedLayers(32, 1024.0, window=100, chunked=True)
    assert reserved_bytes([chunk], 10_000, 50) == 32 * 10 * 16 * 1024


def test_the_last_group_of_a_kind_has_gaps() -> None:
    """Gemma 3: 29 layers with a window are six groups of five."""
    full, window = CachedLayers(5, 1024.0), CachedLayers(29, 1024.0, window=16)
    assert reserved_bytes([full, window], 32, 32, block=16) == 5 * 16 * 1024 * (2 + 6 * (2 + 1))
    assert reserved_bytes([full, window], 64, 32, block=32) == 5 * 32 * 1024 * (2 + 6 * (2 + 1))


def test_kinds_of_nearly_the_same_number_are_groups_of_the_larger() -> None:
    """13 and 12 layers: two groups of 13, not three of 12."""
    kinds = [CachedLayers(13, 1024.0), CachedLayers(12, 1024.0, window=16)]
    assert reserved_bytes(kinds, 160, 16) == 13 * 16 * 1024 * (10 + 2 + 1)


def test_smaller_heads_have_blocks_of_more_tokens_or_a_gap() -> None:
    twice = [CachedLayers(4, 2048.0), CachedLayers(4, 1024.0, window=10_000)]
    assert reserved_bytes(twice, 320, 2048) == 4 * 16 * 2048 * (20 + 10 + 1)
    uneven = [CachedLayers(4, 1536.0), CachedLayers(4, 1024.0, window=10_000)]
    assert reserved_bytes(uneven, 320, 2048) == 4 * 16 * 1536 * (20 + 20 + 1)
