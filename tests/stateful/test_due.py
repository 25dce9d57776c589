"""Which keys are due when, compared with a model in plain lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import pack_state
from forebay.errors import ForebayError
from forebay.stateful.key_states import PER_CHUNK, Due
from forebay.stateful.machine import DictStore
from forebay.stateful.program import TimeDomain

CLOCKS: list[TimeDomain] = ["event", "wall"]
places = st.tuples(st.sampled_from(CLOCKS), st.sampled_from([100, 200]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), places, st.integers(1, 2 * PER_CHUNK)),
        st.tuples(st.just("come"), places, st.just(0)),
        st.tuples(st.just("take"), places, st.just(0)),
        st.tuples(st.just("restore"), places, st.just(0)),
    ),
    max_size=40,
)


def restored(work: DictStore, due: DictStore) -> Due:
    found = Due(work, due)
    for name, value in work.items():
        assert found.restore(name, value)
    found.restored()
    return found


@given(steps)
def test_each_key_is_taken_once_in_order_and_only_when_due(
    script: list[tuple[str, tuple[TimeDomain, int], int]],
) -> None:
    work, due = DictStore(), DictStore()
    found = Due(work, due)
    noted: dict[tuple[TimeDomain, int], list[str]] = {}
    come: dict[tuple[TimeDomain, int], int] = {}
    number = 0
    for what, at, count in script:
        if what == "add":
            for _ in range(count):
                assert found.add(*at, f"k{number}") == (at not in noted)
                noted.setdefault(at, []).append(f"k{number}")
                number += 1
        elif what == "come":
            found.mark_due(*at)
            if at in noted:
                come.setdefault(at, len(noted[at]))
        elif what == "restore":
            found = restored(work, due)
        elif found.first is not None:
            first = found.first
            keys = found.take()
            assert 0 < len(keys) <= min(PER_CHUNK, come[first])
            assert keys == noted[first][: len(keys)]
            del noted[first][: len(keys)]
            come[first] -= len(keys)
            if not come[first]:
                del come[first]
            if not noted[first]:
                del noted[first]
        assert set(found.heads) == set(noted)
        assert {at for at in noted if found.has_come(*at)} == set(come)
    assert (found.first is None) == (not come)
    if not noted:
        assert (work, due) == ({}, {})


@pytest.mark.parametrize("head", [pack_state("event", 100, 2), b"\x80", b"\x96\x63\xa5event\x64\x02\x00\x00"])
def test_a_damaged_head_is_refused(head: bytes) -> None:
    with pytest.raises(ForebayError, match="the checkpoint's timers of keys"):
        Due(DictStore(), DictStore()).restore("devent:100", head)
