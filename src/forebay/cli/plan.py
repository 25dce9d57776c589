"""`forebay plan`: what fits into an accelerator, and how many replicas a workload needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.options import option
from forebay.cli.output import JsonFile, check_json, print_line, print_report
from forebay.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.planning.simulate.traces import TraceRequest

MADE_UP = 3000
MAX_MADE_UP = 20_000
SPAN_S = 600.0
TTFT_S, TPOT_S, GOAL = 1.0, 0.2, 0.99


def plan(
    model: Annotated[Path, typer.Argument(help="The model's config.json, or its folder.")],
    *,
    accelerator: Annotated[
        str, option("A name, such as h100 or a100-80gb, or a memory size, such as 40GB (vendors' 40 GiB).")
    ] = "h100",
    tensor_parallel: Annotated[int, option("Accelerators per replica.", min=1, max=1024)] = 1,
    tflops: Annotated[
        float | None, option("16-bit TFLOP/s, if the accelerator is not known by name.")
    ] = None,
    bandwidth: Annotated[
        float | None, option("Memory bandwidth in GB/s, if it is not known by name.")
    ] = None,
    memory_share: Annotated[float, option("Share of the memory for the engine, like vLLM's setting.")] = 0.9,
    kv_cache_gib: Annotated[
        float | None, option("KV cache per accelerator, if the engine has a fixed size.")
    ] = None,
    kv_cache_type: Annotated[
        str | None, option("Number type of the KV cache, such as fp8; default: the model's.")
    ] = None,
    context: Annotated[
        int | None, option("Tokens per request; default: the workload's mean, else 8192.", min=1)
    ] = None,
    trace: Annotated[Path | None, option("Requests in Mooncake's or Azure's format.")] = None,
    rate: Annotated[float | None, option("Requests per second, without --trace.")] = None,
    prompt_tokens: Annotated[
        str, option("Prompt lengths, without --trace: 512, 100-200 or exp:128:1536.")
    ] = "exp:1000:8000",
    output_tokens: Annotated[str, option("Answer lengths, likewise.")] = "exp:200:2000",
    ttft: Annotated[
        float | None,
        option("SLO: seconds to the first token, on top of the prompt's own prefill; default: 1."),
    ] = None,
    tpot: Annotated[float | None, option("SLO: mean seconds per further token; default: 0.2.")] = None,
    goal: Annotated[float | None, option("Share of requests that must meet the SLO; default: 0.99.")] = None,
    max_num_seqs: Annotated[int, option("Setting of the engine.", min=1, max=8192)] = 128,
    max_num_batched_tokens: Annotated[int, option("Setting of the engine.", min=2, max=1_000_000)] = 2048,
    async_scheduling: Annotated[
        bool,
        option(
            "Plan for asynchronous scheduling (vLLM's default on GPUs): layers with a window reserve twice "
            "--max-num-batched-tokens."
        ),
    ] = False,
    price: Annotated[float | None, option("Price of one accelerator per hour.")] = None,
    transfer_bandwidth: Annotated[
        float | None,
        option("Network between replicas in GB/s: also plan separate prefill and decode replicas."),
    ] = None,
    seed: Annotated[int, option("Seed of generated requests.")] = 0,
    json: JsonFile = None,
) -> None:
    """Plan what fits into an accelerator, and how many replicas a workload needs and what limits them.

    The workload is a --trace, or a --rate with lengths. Without either, only the memory is planned.
    """
    from forebay.planning.memory import GIB, cache_plan, find_accelerator, plan_memory
    from forebay.planning.model_config import read_shape
    from forebay.planning.simulate import Slo
    from forebay.planning.simulate.disaggregation import Transfer
    from forebay.planning.workload import engine_of, plan_split, plan_workload

    check_json(json)
    workload = {"ttft": ttft, "tpot": tpot, "price": price, "transfer_bandwidth": transfer_bandwidth}
    hardware = {"tflops": tflops, "bandwidth": bandwidth, "kv_cache_gib": kv_cache_gib}
    for name, value in _given({**workload, **hardware}):
        if not 0 < value < 1e9:
            raise SettingError(f"{name}: expected a number above 0, found {value:g}")
    for name, _ in _given({**workload, "goal": goal}) if trace is None and rate is None else ():
        raise SettingError(f"{name}: needs a workload; add --rate or --trace")
    shape = read_shape(model, kv_type=kv_cache_type)
    card = find_accelerator(accelerator)
    if tflops is not None:
        card = replace(card, flops=tflops * 1e12)
    if bandwidth is not None:
        card = replace(card, bandwidth=bandwidth * 1e9)
    card = card.times(tensor_parallel)
    requests = _workload(trace, rate, prompt_tokens, output_tokens, seed)
    if context is None:
        whole = sum(one.prompt_tokens + one.output_tokens for one in requests)
        context = round(whole / len(requests)) if requests else min(8192, shape.max_context or 8192)
    steps = 2 if async_scheduling else 1
    step_tokens = steps * max_num_batched_tokens
    if kv_cache_gib is not None:
        kv_bytes = kv_cache_gib * GIB * card.count
        memory = cache_plan(shape.over(card.count), context, kv_bytes, kv_bytes, step_tokens=step_tokens)
    else:
        memory = plan_memory(shape, card, context, memory_share=memory_share, step_tokens=step_tokens)
    asynchronous = shape.over(card.count).reserved_bytes(context, 2 * max_num_batched_tokens)
    document: dict[str, Any] = {
        "model": str(model),
        "accelerator": asdict(card),
        "shape": asdict(shape),
        "memory": asdict(memory),
        "requests_with_async_scheduling": int(memory.kv_bytes / asynchronous),
        **dict.fromkeys(("workload", "split", "cost")),
    }
    if requests:
        engine = engine_of(
            shape, card, memory, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        slo, share = Slo(ttft or TTFT_S, 1.0, tpot or TPOT_S), GOAL if goal is None else goal
        found = plan_workload(requests, engine, slo, goal=share)
        document["workload"] = asdict(found)
        if transfer_bandwidth is not None:
            network = Transfer(memory.kv_bytes_per_token, transfer_bandwidth * 1e9)
            split = plan_split(requests, engine, slo, network, mixed=found.replicas, goal=share)
            document["split"] = asdict(split)
        if price is not None:
            per_hour = price * tensor_parallel * found.replicas
            tokens = sum(one.prompt_tokens + one.output_tokens for one in requests) / len(requests)
            document["cost"] = {
                "per_hour": per_hour,
                "per_1000_requests": per_hour / (3.6 * found.offered_per_s),
                "per_million_tokens": per_hour / (3.6e-3 * found.offered_per_s * tokens),
            }
            if document["split"] and document["split"]["replicas"]:
                document["split"]["per_hour"] = price * tensor_parallel * document["split"]["replicas"]
    print_report(json, document, lambda console: show_plan(document, console))


def show_plan(document: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    shape, memory, work = document["shape"], document["memory"], document["workload"]
    table = Table(box=None, show_header=False)
    table.add_row("parameters", f"{shape['parameters'] / 1e9:.2f} billion")
    table.add_row("weights", f"{memory['weight_bytes'] / 1e9:.1f} GB")
    table.add_row("KV cache per token", f"{memory['kv_bytes_per_token'] / 1024:.1f} KiB")
    of_request = f"{memory['kv_bytes_per_request'] / 2**30:.3g} GiB"
    table.add_row(f"KV cache of a request of {memory['context']} tokens", of_request)
    table.add_row("KV cache", f"{memory['kv_bytes'] / 2**30:.1f} GiB, {memory['kv_tokens']} tokens")
    at_most = f"({memory['requests_at_most']} with all of the memory)"
    table.add_row("requests at once", f"{memory['requests']} {at_most}")
    if (requests := document["requests_with_async_scheduling"]) != memory["requests"]:
        table.add_row("with --async-scheduling", f"{requests}: vLLM's default on GPUs")
    if work:
        table.add_row("offered", f"{work['offered_per_s']:.3g} requests/s")
        speed = f"{work['requests_per_s']:.3g} requests/s, {work['tokens_per_s']:,.0f} tokens/s"
        table.add_row("one replica", speed)
        table.add_row("replicas", f"{work['replicas']}, {work['goodput']:.1%} of the requests within the SLO")
        table.add_row("prefill : decode", f"{work['prefill']:.1f} : {work['decode']:.1f}")
        table.add_row("limited by", f"{work['limit']} (doubling it: {work['gain']:+.0%})")
    if split := document["split"]:
        table.add_row("prefill and decode apart", _split_line(split, work["replicas"]))
    if cost := document["cost"]:
        table.add_row(
            "cost",
            f"{cost['per_hour']:.2f} per hour, {cost['per_1000_requests']:.3g} per 1,000 requests, "
            f"{cost['per_million_tokens']:.3g} per million tokens",
        )
    console.print(table)
    if work:
        print_line(console, "Speeds are estimates from data sheets: measure one replica before you buy many.")


def _split_line(split: dict[str, Any], mixed: int) -> str:
    price = f", {split['per_hour']:.2f} per hour" if "per_hour" in split else ""
    if split["replicas"] is None:
        need = f"not worth it: even {max(3, 2 * mixed)} replicas miss the goal"
    elif split["pays"]:
        need = f"worth it: {split['replicas']} replicas are enough{price}"
    else:
        need = f"not worth it: it takes {split['replicas']} replicas{price}"
    if not split["prefill"]:
        return need
    shape = f"{split['prefill']} prefill, {split['decode']} decode"
    return f"{need}; {shape}: {split['goodput']:.1%} within the SLO"


def _workload(
    trace: Path | None, rate: float | None, prompts: str, outputs: str, seed: int
) -> list[TraceRequest]:
    from random import Random

    from forebay.bench.load.workloads import read_lengths
    from forebay.planning.simulate.traces import TraceRequest, read_trace

    if trace is not None and rate is not None:
        raise SettingError("--trace and --rate: use only one of them")
    if trace is not None:
        # Do not count on cached prefixes.
        return [
            TraceRequest(one.arrived_s, one.prompt_tokens, one.output_tokens) for one in read_trace(trace)
        ]
    if rate is None:
        return []
    if not 0 < rate <= 1e6:
        raise SettingError(f"--rate: expected more than 0 and at most 1,000,000 requests/s, found {rate:g}")
    random, now_s, made = Random(seed), 0.0, []
    one, other = read_lengths(prompts), read_lengths(outputs)
    for _ in range(int(min(max(MADE_UP, rate * SPAN_S), MAX_MADE_UP))):
        made.append(TraceRequest(now_s, one.draw(random), other.draw(random)))
        now_s += random.expovariate(rate)
    return made


def _given(values: dict[str, float | None]) -> Iterator[tuple[str, float]]:
    """The options that were given, and their values."""
    for name, value in values.items():
        if value is not None:
            yield f"--{name.replace('_', '-')}", value
