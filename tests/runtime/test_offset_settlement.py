"""Offsets settle only once the answers to all records before them are committed."""

from __future__ import annotations

from collections import deque

from hypothesis import example, given
from hypothesis import strategies as st

from forebay.runtime.offset_settlement import OffsetSettlement, Sight

NOTHING = 10**15


class Looks:
    """Looks at a job, one after another; each changes what the one before saw."""

    def __init__(self, settling: OffsetSettlement[int]) -> None:
        self._settling = settling
        self._sight = Sight(0.0, 1000, 0, newest=5, newest_done=5, newest_clear=5, oldest_read_ms=NOTHING)
        self.read = 0

    def __call__(self, seconds: float = 1.0, **changes: int) -> int | None:
        old = self._sight
        values = {
            "restarts": old.restarts,
            "newest": old.newest,
            "newest_done": old.newest_done,
            "newest_clear": old.newest_clear,
            "oldest_read_ms": old.oldest_read_ms,
            **changes,
        }
        time_s = old.monotonic_s + seconds
        self._sight = Sight(time_s, 1000 + round(time_s * 1000), **values)
        return self._settling.look(self._sight, self.read)


def test_offsets_settle_step_by_step() -> None:
    look = Looks(OffsetSettlement(metrics_s=3.0))
    look.read = 100
    assert look() is None  # 100 is found, at 2000 ms.
    look.read = 200
    assert look(newest=6, newest_done=6) is None, "what is told of checkpoints may be as old as the offsets"
    assert look(2.0, newest=7) is None  # From here on, 8 is a later one.
    assert look(newest_done=7) is None
    assert look(newest=8, newest_done=8, oldest_read_ms=1900) is None
    assert look(oldest_read_ms=NOTHING) is None, "metrics may be as old as the offsets"
    assert look(2.0, oldest_read_ms=2000) is None, "an event is awaited that was read before"
    assert look(oldest_read_ms=2001) is None
    assert look(newest=9, newest_done=9) is None, "9 may have been triggered before that was known"
    assert look(2.0) is None
    assert look(newest=10, newest_done=10) is None, "the sinks commit what is in 10 after it completes"
    assert look(newest=11) is None
    assert look(newest_done=11) == 100
    assert look() is None  # 200 is found.


def test_offsets_that_have_settled_do_not_settle_again() -> None:
    look = Looks(OffsetSettlement(metrics_s=0.0))
    found = [look(newest=n, newest_done=n) for n in range(6, 40)]
    assert [offsets for offsets in found if offsets is not None] == [0]


def test_a_restart_takes_back_what_was_answered() -> None:
    look = Looks(OffsetSettlement(metrics_s=0.0))
    look.read = 1
    for n in range(6, 10):
        assert look(newest=n, newest_done=n) is None
    look.read = 2
    assert look(restarts=1) is None
    found = [look(newest=n, newest_done=n) for n in range(10, 20)]
    assert [offsets for offsets in found if offsets is not None] == [2]


def test_what_is_not_known_is_waited_for() -> None:
    look = Looks(OffsetSettlement(metrics_s=0.0, skew_ms=500))
    assert not any(look(newest=n, newest_done=n, oldest_read_ms=0) for n in range(6, 50))
    look.read = 3
    assert not any(look(newest=n, newest_done=n, oldest_read_ms=2400) for n in range(50, 99))
    assert 0 in [look(newest=n, newest_done=n, oldest_read_ms=2600) for n in range(100, 120)]


@given(st.lists(st.sampled_from(["read", "answer", "checkpoint", "metrics", "look", "look"]), max_size=200))
def test_no_offset_settles_before_the_answers_before_it_are_committed(steps: list[str]) -> None:
    """A job with one operator, answered in order: `read` and `answer` move it, a checkpoint takes what is
    there and commits what the one before held."""
    settling: OffsetSettlement[int] = OffsetSettlement(metrics_s=0.0)
    read_ms: deque[int] = deque()
    now_ms = done = read = checkpoint = 0
    answered = held = committed = offsets = 0
    oldest = NOTHING
    for step in steps:
        now_ms += 10
        if step == "read":
            read += 1
            read_ms.append(now_ms)
            # What was idle tells at once that it is not.
            oldest = min(oldest, read_ms[0])
        elif step == "answer" and read_ms:
            read_ms.popleft()
            answered += 1
        elif step == "checkpoint":
            checkpoint += 1
            # The sinks commit what the one before held before this one begins.
            committed, held, done = held, answered, checkpoint
            offsets = read
        elif step == "metrics":
            oldest = read_ms[0] if read_ms else NOTHING
        elif step == "look":
            sight = Sight(now_ms / 1000, now_ms, 0, checkpoint, done, done, oldest)
            settled = settling.look(sight, offsets)
            assert settled is None or settled <= committed


def test_behind_many_readers_a_checkpoint_must_hold_nothing_on_its_way() -> None:
    look = Looks(OffsetSettlement(metrics_s=0.0, many_readers=True))
    assert not any(look(newest=n, newest_done=n) for n in range(6, 30))
    look.read = 4
    found = [look(newest=n, newest_done=n, newest_clear=n if n == 35 else 5) for n in range(30, 60)]
    assert [offsets for offsets in found if offsets is not None] == [0]


@given(
    st.lists(
        st.sampled_from(["read 0", "read 1", "take 0", "take 1", "answer", "checkpoint", "metrics", "look"]),
        max_size=200,
    )
)
@example(
    # A record of the first reader stays on its way while those of the second are taken and answered.
    ["read 0", "read 1", "checkpoint", "look", "metrics", "look"] + ["checkpoint", "metrics", "look"] * 8
)
def test_no_offset_settles_while_a_record_before_it_is_on_its_way(steps: list[str]) -> None:
    """Two readers in front of one operator, which takes from either as it likes."""
    settling: OffsetSettlement[tuple[int, ...]] = OffsetSettlement(metrics_s=0.0, many_readers=True)
    ways: tuple[deque[tuple[int, int]], ...] = (deque(), deque())
    read = [0, 0]
    held: list[tuple[int, int, int]] = []
    answered: set[tuple[int, int]] = set()
    in_checkpoint = committed = frozenset[tuple[int, int]]()
    offsets = (0, 0)
    now_ms = checkpoint = clear = 0
    oldest = NOTHING
    for step in steps:
        now_ms += 10
        word, _, reader = step.partition(" ")
        if word == "read":
            way = int(reader)
            ways[way].append((now_ms, read[way]))
            read[way] += 1
        elif word == "take" and ways[int(reader)]:
            read_ms, number = ways[int(reader)].popleft()
            held.append((read_ms, int(reader), number))
            oldest = min(oldest, read_ms)
        elif word == "answer" and held:
            _, way, number = held.pop(0)
            answered.add((way, number))
        elif word == "checkpoint":
            checkpoint += 1
            committed, in_checkpoint = in_checkpoint, frozenset(answered)
            offsets = (read[0], read[1])
            clear = clear if any(ways) else checkpoint
        elif word == "metrics":
            oldest = min(held)[0] if held else NOTHING
        elif word == "look":
            sight = Sight(now_ms / 1000, now_ms, 0, checkpoint, checkpoint, clear, oldest)
            settled = settling.look(sight, offsets) or (0, 0)
            assert all((way, n) in committed for way in (0, 1) for n in range(settled[way]))
