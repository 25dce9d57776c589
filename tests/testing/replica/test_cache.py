from hypothesis import given
from hypothesis import strategies as st

from forebay.testing.replica.work import ScriptedPrefixCache


def test_leading_blocks_seen_before_are_cached() -> None:
    cache = ScriptedPrefixCache(block_chars=4, max_blocks=100)
    assert cache.take("aaaabbbbcc") == 0
    assert cache.take("aaaabbbbcc") == 8
    assert cache.take("aaaabbbbdddd") == 8
    assert cache.take("aaaabbbxcccc") == 4
    assert cache.take("xaaabbbbcccc") == 0
    assert cache.take("aaa") == 0


def test_the_same_block_after_another_text_is_another_block() -> None:
    cache = ScriptedPrefixCache(block_chars=4, max_blocks=100)
    cache.take("aaaabbbb")
    assert cache.take("bbbb") == 0


def test_the_least_recently_used_block_goes_first() -> None:
    cache = ScriptedPrefixCache(block_chars=4, max_blocks=2)
    cache.take("aaaa")
    cache.take("bbbb")
    cache.take("aaaa")
    cache.take("cccc")
    assert cache.take("aaaa") == 4
    assert cache.take("bbbb") == 0


def test_without_blocks_nothing_is_cached() -> None:
    cache = ScriptedPrefixCache(block_chars=4, max_blocks=0)
    cache.take("aaaa")
    assert cache.take("aaaa") == 0


@given(st.lists(st.text(alphabet="ab", max_size=30), max_size=30), st.integers(1, 5), st.integers(1, 8))
def test_a_hit_is_whole_blocks_of_the_text_and_memory_is_bounded(
    texts: list[str], block_chars: int, max_blocks: int
) -> None:
    cache = ScriptedPrefixCache(block_chars, max_blocks)
    for text in texts:
        hit = cache.take(text)
        assert hit % block_chars == 0
        assert hit <= len(text)
        assert len(cache._blocks) <= max_blocks
