"""Convert a GGUF file into a directory that vLLM serves: `convert_gguf.py MODEL.gguf DIRECTORY`.

Run by path with the engine environment's Python; it imports nothing of Forebay. Weights are dequantized to
bfloat16.
"""

import sys
from pathlib import Path


def convert(source: Path, target: Path) -> None:
    import torch  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # type: ignore[import-not-found]

    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    if not tokenizer.chat_template:
        raise SystemExit(f"{source.name} carries no chat template")
    target.mkdir(parents=True)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
