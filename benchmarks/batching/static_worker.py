"""Answers batches with Hugging Face transformers: `static_worker.py SETTINGS`, a JSON object."""

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from itertools import pairwise
from typing import Any

MAX_LINE_BYTES = 1 << 28
PR_SET_PDEATHSIG = 1


class Steps:
    """Records when each step of a batch was computed; a `LogitsProcessor` that changes nothing."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self.at_s: list[float] = []
        self._synchronize = synchronize

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self._synchronize()
        self.at_s.append(time.perf_counter())
        return scores


class Model:
    def __init__(self, settings: dict[str, Any]) -> None:
        import torch  # type: ignore[import-not-found]
        import transformers  # type: ignore[import-not-found]

        threads = settings.get("threads")
        if threads:
            torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        self._torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._path = settings["model"]
        self._tokenizer: Any = None
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            self._path, dtype=getattr(torch, settings["dtype"]), attn_implementation=settings["attention"]
        )
        self._model.to(self.device).eval()
        # Answers have the requested length: end-of-text tokens are ignored.
        self._model.generation_config.eos_token_id = None
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}

    def answer(self, prompts: list[Any], steps: int) -> dict[str, Any]:
        torch = self._torch
        rows = [self._ids(prompt) for prompt in prompts]
        longest = max(map(len, rows))
        self._check(rows, longest + steps)
        # Padded on the left and masked: the next token follows the last of each prompt.
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=self.device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=self.device)
        seen = Steps(torch.cuda.synchronize if self.device == "cuda" else lambda: None)
        began_s = time.perf_counter()
        with torch.inference_mode():
            made = self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=steps,
                do_sample=False,
                pad_token_id=0,
                logits_processor=[seen],
            )
        ended_s = time.perf_counter()
        if made.shape[1] != longest + steps:
            raise RuntimeError(f"{made.shape[1] - longest} tokens were generated instead of {steps}")
        gaps_s = sorted(after - before for before, after in pairwise(seen.at_s))
        return {
            "prompt_tokens": [len(row) for row in rows],
            "steps": steps,
            "took_s": ended_s - began_s,
            "prefill_s": seen.at_s[0] - began_s,
            "step_s": gaps_s[len(gaps_s) // 2] if gaps_s else None,
        }

    def _ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(self._path)
        return list(self._tokenizer(prompt)["input_ids"])

    def _check(self, rows: list[list[int]], length: int) -> None:
        config = self._model.config
        if not all(rows) or not all(0 <= token < config.vocab_size for row in rows for token in row):
            raise ValueError(f"a prompt is empty, or has a token outside of 0 to {config.vocab_size - 1}")
        most = getattr(config, "max_position_embeddings", None)
        if most is not None and length > most:
            raise ValueError(f"prompt and answer have {length} tokens; the model takes {most}")


def main() -> None:
    settings = json.loads(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != settings["parent"]:
            return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if settings.get("cores") and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, settings["cores"])
    # Keep what libraries print out of the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    try:
        model = Model(settings)
    except Exception as error:
        # The log first: it is read as soon as the error arrives.
        traceback.print_exc()
        send({"error": f"{type(error).__name__}: {error}"[:2000]})
        sys.exit(1)
    send({"device": model.device, "versions": model.versions})
    while line := sys.stdin.buffer.readline(MAX_LINE_BYTES):
        try:
            batch = json.loads(line)
            send(model.answer(batch["prompts"], batch["steps"]))
        except Exception as error:
            send({"error": f"{type(error).__name__}: {error}"[:2000]})


if __name__ == "__main__":
    main()
