"""The same work through what people would use instead of Forebay, and through Forebay itself.

`base` says what a peer is and `programs` has one file for each, which reads as a user of that system would
write it. `environments` makes the Python environments that they run in. `feed` sends the events and sees the
results, `process` runs and kills a peer, `run` does both for one load, `figures` and `tables` say what came
of it, and `parts` are the loads that are measured.
"""
