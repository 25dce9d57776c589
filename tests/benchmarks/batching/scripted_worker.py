"""A worker without a model: answers like the real one, or as requested in its first prompt.

Run by path, as the real one is. Each batch is noted in the file that the setting `model` names.
"""

import json
import os
import signal
import sys
import time


def main() -> None:
    settings = json.loads(sys.argv[1])
    if settings["dtype"] == "none":
        print("what is wrong", file=sys.stderr, flush=True)
        print(json.dumps({"error": "RuntimeError: no such number type"}), flush=True)
        return
    if settings["dtype"] == "silent":
        time.sleep(600)
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
        match batch["prompts"][0]:
            case "fail":
                answer = {"error": "OutOfMemoryError: buy more"}
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "nonsense":
                print("Loading…", flush=True)
                continue
            case "short":
                answer["steps"] -= 1
            case "endless":
                sys.stdout.write("x" * (2 << 20))
                sys.stdout.flush()
            case "hang":
                time.sleep(600)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
