"""`python -m forebay.testing.replica`: serve a fake replica until SIGTERM or Ctrl-C.

Prints its URL as the first line of standard output once it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from forebay.testing.replica import exit_with_parent
from forebay.testing.replica.server import FakeReplica
from forebay.testing.script import Faults, Mixture, ReplicaScript


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m forebay.testing.replica", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--parent", type=int, help="exit when the parent process with this id exits")
    parser.add_argument("--script", help="all settings as JSON; - reads it from standard input")
    parser.add_argument("--model", action="append", help="a model name to serve; may be repeated")
    parser.add_argument("--delay", metavar="SHARE:SECONDS,…", help="such as 0.95:0.05,0.05:2")
    parser.add_argument("--seed", type=int, default=0, help="seed of delays and faults")
    parser.add_argument("--token-s", type=float, help="seconds per token of the answer")
    parser.add_argument("--chunks", type=int, help="pieces of content per streamed answer")
    parser.add_argument("--slots", type=int, help="requests that run at a time; others queue")
    parser.add_argument("--max-queue", type=int, help="length of the queue beyond which it answers 503")
    parser.add_argument("--prefill-s-per-char", type=float)
    parser.add_argument("--block-chars", type=int, help="characters per block of the prefix cache")
    parser.add_argument("--cache-blocks", type=int, help="blocks of the prefix cache; 0 disables it")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--fault", action="append", metavar="NAME=SHARE", help="such as 500=0.01; repeatable")
    return parser.parse_args(arguments)


def script_of(options: argparse.Namespace, stdin: str) -> ReplicaScript:
    """Raises `ValueError` if an option cannot be parsed."""
    if options.script is not None:
        return ReplicaScript.from_json(stdin if options.script == "-" else options.script)
    script = ReplicaScript()
    names = ("token_s", "chunks", "slots", "max_queue", "prefill_s_per_char")
    for name in (*names, "block_chars", "cache_blocks", "max_model_len"):
        value = getattr(options, name)
        if value is not None:
            script = replace(script, **{name: value})
    parts = Mixture().parts
    if options.delay:
        pairs = [part.split(":") for part in options.delay.split(",")]
        parts = tuple((float(share), float(seconds)) for share, seconds in pairs)
    shares = tuple((name, float(share)) for name, share in (f.split("=") for f in options.fault or ()))
    return replace(
        script,
        models=tuple(options.model or script.models),
        delay=Mixture(parts, options.seed),
        faults=Faults(shares, options.seed),
    )


async def serve(script: ReplicaScript, host: str, port: int) -> None:
    async with FakeReplica(script, host=host, port=port) as replica:
        print(replica.url, flush=True)
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        await ended.wait()


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    try:
        script = script_of(options, sys.stdin.read() if options.script == "-" else "")
    except (ValueError, KeyError, TypeError) as error:
        print(f"the settings are not valid: {error}", file=sys.stderr)
        return 2
    if options.parent is not None:
        exit_with_parent(options.parent)
    asyncio.run(serve(script, options.host, options.port))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
