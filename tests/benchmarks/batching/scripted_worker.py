"""A worker without a model: answers like the real one, or as requested in its first prompt."""

import json
import os
import sys


def main() -> None:
    settings = json.loads(sys.argv[1])
    print(json.dumps({"device": "cpu", "versions": {"torch": "1", "pid": os.getpid()}}), flush=True)
    for line in sys.stdin:
        batch = json.loads(line)
        with open(settings["model"], "a", encoding="utf-8") as file:
            file.write(json.dumps([len(batch["prompts"]), batch["steps"]]) + "\n")
        answer = {
            "prompt_tokens": [len(prompt) for prompt in batch["prompts"]],
            "steps": batch["steps"],
            "took_s": 0.5,
            "prefill_s": 0.25,
            "step_s": 0.01 if batch["steps"] > 1 else None,
        }
        if batch["prompts"][0] == "fail":
            answer = {"error": "OutOfMemoryError: buy more"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
