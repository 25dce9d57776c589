"""What was said in each channel, hour by hour: an application as a function in your own job.

forebay engine up
python examples/hourly_summaries.py
"""

from pathlib import Path

import forebay as fb

ENGINE = "http://127.0.0.1:8100"
HERE = Path(__file__).parent

env = fb.environment()
tickets = fb.read_jsonl(env, HERE / "tickets.jsonl", time="created_at", out_of_orderness_s=30)
ask = fb.Inference(ENGINE, timeout_s=120)

# The arguments after `key` are the settings of the application `summary` in a pipeline file.
hourly = fb.summaries(tickets, ask, key="{{ channel }}", author="user", window="tumbling", size_s=3600)

hourly.results.map(lambda result: f"{result.key}: {result.answer}").print()
fb.write_jsonl(hourly.results, "out/hourly-summaries")
fb.write_jsonl(hourly.dead_letters, "out/hourly-summaries-dead-letters")
env.execute("hourly summaries")
