"""The same work with alternatives to Forebay, and with Forebay.

`base` defines a peer, and `programs` has one file for each, written like a user of that system would.
`environments` creates their Python environments, `feed` sends events and reads results, `process` runs and
kills a peer, `run` does both for one load, `figures` and `tables` evaluate it, and `parts` are the loads.
"""
