"""API keys: found by the right one only, and nowhere to be read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.keys import Caller, KeyRing
from forebay.gateway.limits import KeyLimits
from forebay.gateway.refusal import Refusal

RING = KeyRing([("a", "sk-a", KeyLimits()), ("b", "sk-bé", KeyLimits())], 0.0)


def test_the_right_keys() -> None:
    assert RING.find(b"Bearer sk-a").name == "a"
    assert RING.find("bearer  sk-bé ".encode()).name == "b"


@given(given=st.none() | st.binary(max_size=40) | st.binary(max_size=20).map(lambda key: b"Bearer " + key))
def test_anything_else_is_refused(given: bytes | None) -> None:
    if given is not None and given.strip() in (b"Bearer sk-a", "Bearer sk-bé".encode()):
        return
    with pytest.raises(Refusal) as caught:
        RING.find(given)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


def test_without_keys_everybody_is_anyone() -> None:
    assert KeyRing((), 0.0).find(None).name == "anyone"


def test_a_key_is_nowhere_to_be_read() -> None:
    caller = RING.find(b"Bearer sk-a")
    assert "sk-a" not in repr(caller)
    assert b"sk-a" not in caller.digest
    for one in RING._callers:
        kept = [str(getattr(one, slot)) for slot in Caller.__slots__]
        assert not [value for value in kept for secret in ("sk-a", "sk-bé") if secret in value]
