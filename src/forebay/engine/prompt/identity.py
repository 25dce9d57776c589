"""Who a request is: its id, the same each time its record is read, and the hash of what it asks."""

from __future__ import annotations

import hashlib
import json

from forebay.records import Event, Request

HASH_BYTES = 16


def request_id(event: Event, key: str, explicit: str | None) -> str:
    """The id of the request for `event`: a pure function of the record.

    In this order: `explicit` (the pipeline's `id` template), the record's position in its source, a hash of
    its raw bytes and key (32 hex digits of BLAKE2b). Only the last cannot tell two identical records of one
    key apart: a source that does not know positions should be given an `id` template.
    """
    if explicit is not None:
        return explicit
    if event.position is not None:
        return event.position
    encoded_key = key.encode(errors="surrogatepass")
    digest = hashlib.blake2b(len(encoded_key).to_bytes(8, "big"), digest_size=HASH_BYTES)
    digest.update(encoded_key)
    digest.update(event.raw)
    return digest.hexdigest()


def request_hash(request: Request) -> str:
    """64 hex digits of what determines the answer: model, prompt or messages, sampling and schema.

    The id is left out: two records that ask the same share one entry of the result journal.
    """
    sampling = request.sampling
    asked = {
        "model": request.model,
        "messages": [[message.role, message.content] for message in request.messages],
        "prompt": request.prompt,
        "sampling": {
            "max_tokens": sampling.max_tokens,
            "temperature": float(sampling.temperature),
            "top_p": None if sampling.top_p is None else float(sampling.top_p),
            "seed": sampling.seed,
            "stop": list(sampling.stop),
            "extra": dict(sampling.extra),
        },
        "schema": request.schema,
    }
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"), default=dict)
    return hashlib.blake2b(canonical.encode(), digest_size=32).hexdigest()
