"""Computes the report from the clients' answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.figures import quantile
from benchmarks.ray_fleet.client import Answer

RAY, SERVE, GATEWAY, DIRECT, IN_TURN = "ray", "serve", "gateway", "direct", "in_turn"
WAYS = {
    RAY: "our gateway before the fleet on Ray",
    SERVE: "a Ray program before it: Serve chooses, by our router",
    GATEWAY: "our gateway before replicas of its own",
    DIRECT: "no gateway: each group to its replica on Ray",
    IN_TURN: "no gateway: to the replicas on Ray in turn",
}
TARGET_DIFFERENCE, TARGET_ADDED_MS = 0.03, 15.0
MIN_FOR_P99 = 1000


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives of an answer: complete, with first token and end at most this long after it was due."""

    ttft_ms: float = 200.0
    e2el_ms: float = 1000.0

    def met(self, answer: Answer) -> bool:
        return answer.whole and answer.first_ms <= self.ttft_ms and answer.whole_ms <= self.e2el_ms


def way_figures(answers: Sequence[Answer], slo: Slo) -> dict[str, Any]:
    whole = [answer for answer in answers if answer.whole]
    prompts = sum(answer.prompt_tokens for answer in whole)
    first = sorted(answer.first_ms for answer in whole)
    return {
        "requests": len(answers),
        "failed": len(answers) - len(whole),
        "hit_share": sum(answer.cached_tokens for answer in whole) / prompts if prompts else 0.0,
        "goodput": sum(map(slo.met, answers)) / len(answers) if answers else 0.0,
        "ttft_ms_p50": quantile(first, 0.5) if first else None,
        "ttft_ms_p99": quantile(first, 0.99) if len(first) >= MIN_FOR_P99 else None,
        "e2el_ms_p50": quantile(sorted(one.whole_ms for one in whole), 0.5) if whole else None,
    }


def compared(ways: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The fleet on Ray as a share of our gateway alone, and against the direct call."""
    ray, gateway, direct = ways[RAY], ways[GATEWAY], ways[DIRECT]
    found: dict[str, Any] = {
        f"{name}_difference": ray[name] / gateway[name] - 1 if gateway[name] else None
        for name in ("hit_share", "goodput")
    }
    both = ray["ttft_ms_p50"], direct["ttft_ms_p50"]
    found["added_ttft_ms_p50"] = None if None in both else both[0] - both[1]
    return found


def kill_figures(answers: Sequence[Answer], deadline_s: float) -> dict[str, Any]:
    whole = [answer.whole_ms for answer in answers if answer.whole]
    return {
        "requests": len(answers),
        "lost": len(answers) - len(whole),
        "broken": sum(answer.broken for answer in answers),
        "again": sum(answer.calls > 1 for answer in answers),
        "slowest_ms": max(whole, default=None),
        "deadline_s": deadline_s,
    }


def report(
    rounds: Mapping[str, Sequence[Sequence[Answer]]],
    slo: Slo,
    kills: Mapping[str, Mapping[str, Any]],
    hung_up: Mapping[str, int],
) -> dict[str, Any]:
    ways = {
        way: {
            **way_figures([answer for one in seen for answer in one], slo),
            "rounds": [_short(way_figures(one, slo)) for one in seen],
        }
        for way, seen in rounds.items()
    }
    compared_ways = compared(ways)
    added = compared_ways["added_ttft_ms_p50"]
    return {
        "slo": asdict(slo),
        "ways": ways,
        "compared": compared_ways,
        "killed": dict(kills),
        "hung_up": dict(hung_up),
        "targets": {"difference": TARGET_DIFFERENCE, "added_ttft_ms_p50": TARGET_ADDED_MS},
        "passed": {
            "hit_share": _within(compared_ways["hit_share_difference"]),
            "goodput": _within(compared_ways["goodput_difference"]),
            "added_ttft": added is not None and added <= TARGET_ADDED_MS,
            "killed": all(not one["lost"] for one in kills.values()),
            "hung_up": hung_up["aborted"] == hung_up["requests"] and not hung_up["completed"],
        },
    }


def _short(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("hit_share", "goodput", "ttft_ms_p50")}


def _within(difference: float | None) -> bool:
    return difference is not None and difference >= -TARGET_DIFFERENCE
