"""Where the checkpoints of a measured pipeline are, where that is an object store."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forebay.errors import ForebayError
from forebay.s3.location import S3Path


@contextmanager
def state_folder(state: S3Path | None, note: Callable[[str], None]) -> Iterator[S3Path | None]:
    """A folder below `state` that is there for the length of the block; None where that is. Where the block
    fails and the folder cannot be deleted either, the latter is only noted."""
    if state is None:
        yield None
        return
    from forebay.s3.client import S3Client

    home = state / f"bench-{uuid.uuid4().hex[:8]}"
    client = S3Client(home.bucket)
    client.check(home.key)
    try:
        yield home
    except BaseException:
        try:
            client.delete(home.key)
        except ForebayError as error:
            note(f"{home} stays: {error}")
        raise
    client.delete(home.key)
