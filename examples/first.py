import forebay as fb

env = fb.environment()
lines = env.from_collection(["My router blinks red.", "Please refund me."])
ask = fb.Inference("http://127.0.0.1:8100", prompt="In one word, what is this about? {{ text }}")
answered = fb.infer(lines, ask)
answered.results.map(lambda result: f"{result.fields['text']} {result.answer}").print()
fb.write_jsonl(answered.dead_letters, "out/dead-letters")
env.execute("topics")
