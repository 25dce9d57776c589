"""Made-up prompts from a seed, of exact lengths in tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any, ClassVar, Protocol

from forebay.bench.records import LoadRequest
from forebay.errors import SettingError
from forebay.planning.simulate.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

MAX_TOKENS = 10_000_000


class Described:
    """A dataclass whose `asked` has its kind and fields, for the report."""

    __slots__ = ()
    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "") -> None:
        # `dataclass(slots=True)` makes the class a second time, without `kind`.
        cls.kind = kind or cls.kind

    def asked(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        own = {name: each.asked() if hasattr(each, "asked") else each for name, each in values.items()}
        return {"kind": self.kind, **own}


class Lengths(Protocol):
    def draw(self, random: Random) -> int: ...

    def asked(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Exactly(Described, kind="exactly"):
    tokens: int

    def __post_init__(self) -> None:
        check_tokens("length", self.tokens)

    def draw(self, random: Random) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform(Described, kind="uniform"):
    low: int
    high: int

    def __post_init__(self) -> None:
        check_tokens("shortest length", self.low)
        check_tokens("longest length", self.high)
        if self.low > self.high:
            raise SettingError(f"lengths: the shortest, {self.low}, is above the longest, {self.high}")

    def draw(self, random: Random) -> int:
        return random.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class CappedExponential(Described, kind="capped_exponential"):
    """Exponential with this mean before the cut; draws above `limit` are repeated, and rounded up.

    The continuous-batching study used mean 128 and limits 32, 128, 512 and 1536.
    """

    mean: float
    limit: int

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= MAX_TOKENS:
            raise SettingError(f"mean length: expected 1 to {MAX_TOKENS} tokens, found {self.mean:g}")
        check_tokens("length limit", self.limit)
        if self.limit < self.mean / 100:
            raise SettingError(
                f"length limit: {self.limit} tokens would reject nearly every draw of mean {self.mean:g}; "
                f"expected at least {self.mean / 100:g}"
            )

    def draw(self, random: Random) -> int:
        while True:
            drawn = max(1, -int(-random.expovariate(1 / self.mean) // 1))
            if drawn <= self.limit:
                return drawn


def check_tokens(name: str, tokens: int) -> None:
    """Raise `SettingError` unless `tokens` is 1 to 10 million."""
    if not 1 <= tokens <= MAX_TOKENS:
        raise SettingError(f"{name}: expected 1 to {MAX_TOKENS} tokens, found {tokens}")


def read_lengths(text: str) -> Lengths:
    """Parse `512`, `100-200`, or `exp:128:1536` for the capped exponential. Raises `SettingError`."""
    try:
        kind, *numbers = text.split(":")
        if kind == "exp" and len(numbers) == 2:
            return CappedExponential(float(numbers[0]), int(numbers[1]))
        low, dash, high = text.partition("-")
        return Uniform(int(low), int(high)) if dash else Exactly(int(low))
    except ValueError:
        raise SettingError(
            f"lengths: expected a number of tokens, LOW-HIGH or exp:MEAN:LIMIT, found {text[:80]!r}"
        ) from None


FIRST_ID, LAST_ID = 1_000, 30_000
"""Ids of made-up prompts: after the special tokens, and within the smallest common vocabulary."""
MAX_GROUPS = 1_000_000
# fmt: off
WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on",
    "not", "his", "but", "at", "are", "this", "have", "from", "or", "had", "they", "which", "one",
    "you", "were", "all", "her", "would", "there", "we", "been", "has", "when", "who", "will", "more",
    "if", "out", "so", "up", "said", "what", "about", "than", "into", "them", "can", "only", "other",
    "time", "new", "some", "could", "two", "may", "first", "then", "do", "any", "like", "my", "now",
    "over", "such", "our",
)
# fmt: on


class Workload(Protocol):
    def requests(self, count: int, *, seed: int, nonce: str) -> list[LoadRequest]:
        """`seed` decides lengths; with the nonce, the prompts."""
        ...

    def asked(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class RandomTokens(Described, kind="random_tokens"):
    prompt: Lengths
    output: Lengths
    exact: bool = True

    def requests(self, count: int, *, seed: int, nonce: str) -> list[LoadRequest]:
        random = Random(f"lengths {seed}")
        made = []
        for index in range(count):
            prompt_tokens, output_tokens = self.prompt.draw(random), self.output.draw(random)
            ids = random_ids(prompt_tokens, nonce, seed, index)
            made.append(LoadRequest(index, None, ids, output_tokens, self.exact, prompt_tokens))
        return made


@dataclass(frozen=True, slots=True)
class RandomWords(Described, kind="random_words"):
    """For servers that accept no token ids."""

    prompt: Lengths
    output: Lengths
    exact: bool = True

    def requests(self, count: int, *, seed: int, nonce: str) -> list[LoadRequest]:
        random = Random(f"lengths {seed}")
        made = []
        for index in range(count):
            words, output_tokens = self.prompt.draw(random), self.output.draw(random)
            text = " ".join(_of(nonce, seed, index).choices(WORDS, k=words))
            made.append(LoadRequest(index, None, text, output_tokens, self.exact))
        return made


@dataclass(frozen=True, slots=True)
class PrefixGroups(Described, kind="prefix_groups"):
    """Prompts begin, in turn, with one of `groups` prefixes of `prefix_tokens` tokens."""

    groups: int
    prefix_tokens: int
    suffix: Lengths
    output: Lengths
    exact: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.groups <= MAX_GROUPS:
            raise SettingError(f"prefix groups: expected 1 to {MAX_GROUPS}, found {self.groups}")
        if not 1 <= self.prefix_tokens <= 1_000_000:
            raise SettingError(f"prefix: expected 1 to 1000000 tokens, found {self.prefix_tokens}")

    def requests(self, count: int, *, seed: int, nonce: str) -> list[LoadRequest]:
        random = Random(f"lengths {seed}")
        used = range(min(self.groups, count))
        prefixes = [random_ids(self.prefix_tokens, nonce, seed, f"prefix {group}") for group in used]
        made = []
        for index in range(count):
            own, output_tokens = self.suffix.draw(random), self.output.draw(random)
            ids = prefixes[index % self.groups] + random_ids(own, nonce, seed, index)
            group = str(index % self.groups)
            made.append(LoadRequest(index, None, ids, output_tokens, self.exact, len(ids), group))
        return made


@dataclass(frozen=True, slots=True)
class SessionWorkload(Described, kind="sessions"):
    """Conversations: each prompt is the previous one, a made-up answer, and new tokens. First turns are sent
    first."""

    turns: int
    first: Lengths
    following: Lengths
    output: Lengths
    exact: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.turns <= 10_000:
            raise SettingError(f"turns: expected 1 to 10000, found {self.turns}")

    def requests(self, count: int, *, seed: int, nonce: str) -> list[LoadRequest]:
        random = Random(f"lengths {seed}")
        sessions = -(-count // self.turns)
        histories = [array("I") for _ in range(sessions)]
        made = []
        for index in range(count):
            session = index % sessions
            own = (self.following if index >= sessions else self.first).draw(random)
            output_tokens = self.output.draw(random)
            ids = histories[session] + random_ids(own, nonce, seed, index)
            histories[session] = ids + random_ids(output_tokens, nonce, seed, f"answer {index}")
            name = str(session)
            made.append(LoadRequest(index, None, ids, output_tokens, self.exact, len(ids), name, name))
        return made


@dataclass(frozen=True, slots=True)
class TracePrompts:
    trace: Sequence[TraceRequest]
    source: str = "trace"
    exact: bool = True

    def requests(self, count: int, *, seed: int, nonce: str) -> list[LoadRequest]:
        if count > len(self.trace):
            raise SettingError(f"{self.source} holds {len(self.trace)} requests, and {count} were asked for")
        made = []
        for index, one in enumerate(self.trace[:count]):
            ids = array("I")
            for block in one.blocks:
                ids += random_ids(MOONCAKE_BLOCK_TOKENS, nonce, seed, f"block {block}")
            ids += random_ids(one.prompt_tokens - len(ids), nonce, seed, index)
            made.append(LoadRequest(index, None, ids, one.output_tokens, self.exact, one.prompt_tokens))
        return made

    def asked(self) -> dict[str, Any]:
        return {"kind": "trace", "source": self.source, "exact": self.exact}


def random_ids(count: int, nonce: str, seed: int, part: object) -> array[int]:
    return array("I", _of(nonce, seed, part).choices(range(FIRST_ID, LAST_ID), k=count))


def _of(nonce: str, seed: int, part: object) -> Random:
    return Random(f"{nonce} {seed} {part}")
