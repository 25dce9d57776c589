from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.fleet.prefix_index import PrefixIndex

Step = tuple[str, int, tuple[int, ...]]


def chain(prompt: int, length: int, shared: int = 0) -> tuple[int, ...]:
    """Blocks of a prompt whose first `shared` blocks all prompts have."""
    return tuple(at if at < shared else prompt * 1000 + at for at in range(length))


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    done: list[Step] = []
    for _ in range(draw(st.integers(1, 40))):
        blocks = chain(draw(st.integers(1, 6)), draw(st.integers(0, 9)), draw(st.integers(0, 4)))
        kind = draw(st.sampled_from(["insert", "insert", "insert", "forget", "clear"]))
        done.append((kind, draw(st.integers(0, 19)), blocks))
    return done


def apply(index: PrefixIndex, model: list[set[int]], step: Step) -> None:
    kind, replica, blocks = step
    if kind == "insert":
        index.insert(replica, blocks)
        model[replica] |= set(blocks)
    elif kind == "forget":
        index.forget(replica, blocks)
        model[replica] -= set(blocks)
    else:
        index.clear(replica)
        model[replica].clear()


def depth(held: set[int], blocks: tuple[int, ...]) -> int:
    return next((at for at, block in enumerate(blocks) if block not in held), len(blocks))


@given(steps(), st.integers(1, 6), st.integers(0, 9), st.integers(0, 4))
def test_index_is_exact_if_everything_fits(done: list[Step], prompt: int, length: int, shared: int) -> None:
    index = PrefixIndex([10_000] * 20)
    model: list[set[int]] = [set() for _ in range(20)]
    for step in done:
        apply(index, model, step)
    blocks = chain(prompt, length, shared)
    assert index.match(blocks).tolist() == [depth(held, blocks) for held in model]
    assert len(index) == len(set().union(*model))
    assert [index.held(replica) for replica in range(20)] == [len(held) for held in model]


@given(steps(), st.integers(0, 12))
def test_full_index_forgets_but_never_invents(done: list[Step], capacity: int) -> None:
    index = PrefixIndex([capacity] * 20)
    model: list[set[int]] = [set() for _ in range(20)]
    for step in done:
        apply(index, model, step)
        for prompt in range(1, 7):
            for shared in (0, 4):
                blocks = chain(prompt, 9, shared)
                truth = [depth(held, blocks) for held in model]
                assert all(a <= b for a, b in zip(index.match(blocks).tolist(), truth, strict=True))
    assert all(index.held(replica) <= capacity for replica in range(20))
    for replica in range(20):
        index.clear(replica)
    assert len(index) == 0


def test_frequently_used_blocks_stay() -> None:
    index = PrefixIndex([20])
    hot = chain(1, 4)
    for prompt in range(2, 200):
        index.insert(0, hot)
        index.insert(0, chain(prompt, 5))
        assert index.match(hot).tolist() == [4]
    assert index.match(chain(2, 5)).tolist() == [0]
    assert index.held(0) == 20


def test_the_end_of_a_prompt_is_forgotten_before_its_beginning() -> None:
    index = PrefixIndex([10])
    index.insert(0, chain(1, 8))
    index.insert(0, chain(2, 6))
    assert index.match(chain(1, 8)).tolist() == [4]
    assert index.match(chain(2, 6)).tolist() == [6]


@pytest.mark.parametrize("count", [3, 100, 1000])
def test_many_replicas_may_hold_a_prefix_to_different_depths(count: int) -> None:
    index = PrefixIndex([100] * count)
    for replica in range(count):
        index.insert(replica, chain(1, replica % 7))
    assert index.match(chain(1, 6)).tolist() == [replica % 7 for replica in range(count)]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_hundred_replicas_with_100000_blocks_fit_in_a_gibibyte(shared: bool) -> None:
    # A twentieth of that, whose table is as empty as tables get right after they have grown.
    blocks, replicas = 5600, 100
    index = PrefixIndex([blocks] * replicas)
    gc.collect()
    tracemalloc.start()
    for replica in range(replicas):
        for at in range(0, blocks, 8):
            first = at if shared else replica * blocks + at
            # Hashes that share no object with any other caller's.
            index.insert(replica, [(first + i) * 0x9E3779B97F4A7C15 % 2**60 for i in range(8)])
            index.insert(replica, [(first + i) * 0x9E3779B97F4A7C15 % 2**60 for i in range(8)])
    taken, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index.held(0) == blocks
    pairs = blocks * replicas
    assert taken / pairs < 2**30 / 10_000_000
    assert peak / pairs < 1.5 * 2**30 / 10_000_000


def test_forgotten_block_is_new_when_it_returns() -> None:
    index = PrefixIndex([100])
    for block in range(100):
        index.insert(0, (block,))
    index.forget(0, range(50))
    for block in range(50):
        index.insert(0, (block,))
    for block in range(100, 150):
        index.insert(0, (block,))
    assert [block for block in range(150) if index.match((block,))[0]] == [*range(50), *range(100, 150)]
