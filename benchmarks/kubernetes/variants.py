"""Engines of a run, scripted replicas or real vLLM, and the stream that suits them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.kubernetes.burst import CONTROLLER_IMAGE, ENGINE_IMAGE, PIPELINE_IMAGE, BurstOptions
from benchmarks.kubernetes.container import Image
from forebay.engine.launch.environment import DEFAULT_MODEL
from forebay.engine.launch.local import best_type
from forebay.engine.launch.spec import compute_environment
from forebay.errors import SetupError
from forebay.settings import Settings

FOREBAY = Image(entrypoint=(sys.executable, "-m", "forebay"))
SCRIPTED_ANSWER_S = 0.5
SCRIPTED_SLOTS = 4
REAL_ANSWER_TOKENS = 96


def scripted_burst() -> BurstOptions:
    """Answers take half a second, four at a time; takes minutes.

    The burst is long enough for a second replica that starts slowly.
    """
    return BurstOptions(
        rate=3.0,
        burst=500,
        engine={"model": "fake", "startup_s": 60, "drain_s": 60},
        pipeline={"sampling": {"max_tokens": 16}},
        scaling={
            "slo_s": 8.0,
            "boot_s": 5.0,
            "every_s": 1.0,
            # Approximate speed of this many slots.
            "answer_tokens_per_s": 64.0,
            "prompt_tokens_per_s": 300.0,
            "requests_per_replica": SCRIPTED_SLOTS,
        },
        longest_s=600.0,
    )


def real_burst(settings: Settings) -> BurstOptions:
    """vLLM with the packaged model, one thread each; takes minutes."""
    python = settings.engine_env / "bin" / "python"
    model = settings.models / DEFAULT_MODEL
    for needed in (python, model):
        if not needed.exists():
            raise SetupError(f"{needed} is missing; run `forebay setup --engine`, or use --quick")
    arguments = (
        # Like a local engine: bfloat16 is slow if the processor only emulates it.
        f"--dtype={best_type(settings).name}",
        "--max-model-len=2048",
        "--max-num-seqs=64",
        f"--kv-cache-memory-bytes={1 << 29}",
        "--block-size=32",
        "--enforce-eager",
    )
    return BurstOptions(
        rate=0.5,
        burst=150,
        engine={
            "model": str(model),
            "args": arguments,
            "env": {**compute_environment(python, 1), "TORCH_COMPILE_DISABLE": "1"},
            "egress": False,
            "startup_s": 600,
            "drain_s": 120,
        },
        pipeline={
            "engine": {"model": DEFAULT_MODEL},
            "sampling": {"max_tokens": REAL_ANSWER_TOKENS, "extra": {"ignore_eos": True}},
        },
        scaling={
            "slo_s": 60.0,
            "boot_s": 30.0,
            "every_s": 2.0,
            # Approximate speed of one core; corrected by observations.
            "answer_tokens_per_s": 150.0,
            "prompt_tokens_per_s": 1500.0,
            "requests_per_replica": 64,
        },
        quiet_s=20.0,
    )


def images(folder: Path, settings: Settings, *, real: bool) -> Mapping[str, Image]:
    """Replacements for the container images; writes the engine's programs into `folder`."""
    programs = folder / "programs"
    programs.mkdir()
    python = shlex.quote(sys.executable)
    _program(programs / "python3", f'exec {python} "$@"')
    if real:
        # Not the `vllm` of that environment: it requires a package of that name, but the one for processors
        # has another name.
        own = shlex.quote(str(settings.engine_env / "bin" / "python"))
        server = f"{own} -m vllm.entrypoints.openai.api_server"
        _program(
            programs / "vllm",
            f'shift; model=$1; shift\nexec env -u PYTHONPATH {server} --model "$model" "$@"',
        )
    else:
        _program(
            programs / "vllm",
            "for word; do case $word in\n"
            "--served-model-name=*) name=${word#*=} ;;\n"
            "--port=*) port=${word#*=} ;;\n"
            "esac; done\n"
            f"exec {python} -m forebay.testing.replica --host 0.0.0.0 --port $port --model $name "
            f"--delay 1:{SCRIPTED_ANSWER_S} --slots {SCRIPTED_SLOTS}",
        )
    return {PIPELINE_IMAGE: FOREBAY, CONTROLLER_IMAGE: FOREBAY, ENGINE_IMAGE: Image(programs=programs)}


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
